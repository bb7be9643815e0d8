#include "common/tokenizer/bpe.h"

#include <functional>
#include <queue>
#include <utility>

#include "common/base/strings.h"

namespace baton {
namespace {

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

struct Symbol {
  int32_t id;
  int32_t prev;  // -1: none
  int32_t next;  // -1: none
  bool alive;
};

struct Candidate {
  uint32_t rank;
  int32_t position;  // of the left symbol
  int32_t result;

  // The best merge first, the leftmost of equals.
  bool operator<(const Candidate& other) const {
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

}  // namespace

BpeModel::BpeModel(const std::vector<Merge>& merges, const std::array<int32_t, 256>& byte_tokens,
                   absl::flat_hash_map<std::string, int32_t> whole_words)
    : byte_tokens_(byte_tokens), whole_words_(std::move(whole_words)) {
  merges_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    // A pair listed twice keeps its last rank, as in `tokenizers`.
    merges_.insert_or_assign(PairKey(merges[rank].left, merges[rank].right),
                             Target{static_cast<uint32_t>(rank), merges[rank].result});
  }
}

void BpeModel::Encode(std::string_view word, std::vector<int32_t>* ids) const {
  if (!whole_words_.empty()) {
    if (const auto it = whole_words_.find(AbslView(word)); it != whole_words_.end()) {
      ids->push_back(it->second);
      return;
    }
  }
  if (word.size() > kMaxCachedWord) {
    MergeWord(word, ids);
    return;
  }
  Shard& shard = cache_[std::hash<std::string_view>()(word) % kShards];
  {
    MutexLock lock(shard.mu);
    if (const auto it = shard.words.find(AbslView(word)); it != shard.words.end()) {
      ids->insert(ids->end(), it->second.begin(), it->second.end());
      return;
    }
  }
  const size_t begin = ids->size();
  MergeWord(word, ids);
  MutexLock lock(shard.mu);
  if (shard.words.size() >= kShardEntries) shard.words.clear();
  shard.words.try_emplace(std::string(word), ids->begin() + static_cast<std::ptrdiff_t>(begin),
                          ids->end());
}

void BpeModel::MergeWord(std::string_view word, std::vector<int32_t>* ids) const {
  std::vector<Symbol> symbols;
  symbols.reserve(word.size());
  for (char c : word) {
    const int32_t id = byte_tokens_[static_cast<uint8_t>(c)];
    if (id < 0) continue;
    const auto index = static_cast<int32_t>(symbols.size());
    symbols.push_back({id, index - 1, index + 1, true});
  }
  if (symbols.empty()) return;
  symbols.back().next = -1;

  std::priority_queue<Candidate> queue;
  const auto consider = [&](int32_t left) {
    const int32_t right = left < 0 ? -1 : symbols[static_cast<size_t>(left)].next;
    if (right < 0) return;
    const auto it = merges_.find(
        PairKey(symbols[static_cast<size_t>(left)].id, symbols[static_cast<size_t>(right)].id));
    if (it != merges_.end()) queue.push({it->second.rank, left, it->second.result});
  };
  for (int32_t i = 0; i < static_cast<int32_t>(symbols.size()); ++i) consider(i);

  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[static_cast<size_t>(best.position)];
    if (!left.alive || left.next < 0) continue;
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    // An entry is stale when one of its symbols has merged since.
    const auto it = merges_.find(PairKey(left.id, right.id));
    if (it == merges_.end() || it->second.result != best.result) continue;
    left.id = best.result;
    right.alive = false;
    left.next = right.next;
    if (left.next >= 0) symbols[static_cast<size_t>(left.next)].prev = best.position;
    consider(left.prev);
    consider(best.position);
  }
  for (int32_t i = 0; i >= 0; i = symbols[static_cast<size_t>(i)].next) {
    ids->push_back(symbols[static_cast<size_t>(i)].id);
  }
}

}  // namespace baton
