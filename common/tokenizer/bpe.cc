#include "common/tokenizer/bpe.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "common/base/strings.h"
#include "common/tokenizer/utf8.h"

namespace baton {
namespace {

constexpr int32_t kNoToken = -1;
constexpr int32_t kMerged = -2;

uint64_t PairKey(int32_t left, int32_t right) {
  return BpeVocabulary::Pair(static_cast<uint32_t>(left), static_cast<uint32_t>(right));
}

}  // namespace

// The symbols of a word in order. A symbol's place is its offset among the word's bytes; its size
// stands at its first and its last place, so that both neighbours are found without links.
class BpeModel::Symbols {
 public:
  explicit Symbols(size_t bytes) : ids_(bytes), sizes_(bytes) {}

  void Append(int32_t id, uint32_t size) {
    ids_[end_] = id;
    SetSize(end_, size);
    end_ += size;
  }
  // Adds bytes that give no symbol to the last one, so that places stay without gaps.
  void Skip(uint32_t size) {
    if (end_ == 0) return;
    const uint32_t last = Previous(end_);
    SetSize(last, sizes_[last] + size);
    end_ += size;
  }

  uint32_t end() const { return end_; }
  int32_t id(uint32_t at) const { return ids_[at]; }
  uint32_t size(uint32_t at) const { return sizes_[at]; }
  uint32_t Next(uint32_t at) const { return at + sizes_[at]; }          // end(): none
  uint32_t Previous(uint32_t at) const { return at - sizes_[at - 1]; }  // at > 0

  void Merge(uint32_t left, uint32_t right, int32_t result) {
    const uint32_t size = sizes_[left] + sizes_[right];
    ids_[right] = kMerged;
    ids_[left] = result;
    SetSize(left, size);
  }

 private:
  void SetSize(uint32_t at, uint32_t size) { sizes_[at] = sizes_[at + size - 1] = size; }

  std::vector<int32_t> ids_;
  std::vector<uint32_t> sizes_;
  uint32_t end_ = 0;
};

BpeModel::BpeModel(BpeVocabulary vocabulary) : vocab_(std::move(vocabulary)) {
  merges_.reserve(vocab_.merges.size());
  bool one_result = true;
  for (const BpeVocabulary::Merge& merge : vocab_.merges) {
    // A pair listed twice keeps its last rank, as in `tokenizers`.
    merges_.insert_or_assign(PairKey(merge.left, merge.right), Target{merge.rank, merge.result});
    if (merge.rank >= results_.size()) results_.resize(merge.rank + 1, kNoToken);
    int32_t& result = results_[merge.rank];
    one_result = one_result && (result == kNoToken || result == merge.result);
    result = merge.result;
  }
  if (!one_result) results_ = {};
  vocab_.merges = {};
}

int32_t BpeModel::CharToken(char32_t c) const {
  const auto it = vocab_.char_tokens.find(c);
  return it == vocab_.char_tokens.end() ? kNoToken : it->second;
}

void BpeModel::Encode(std::string_view word, std::vector<int32_t>* ids) const {
  if (!vocab_.whole_words.empty()) {
    if (const auto it = vocab_.whole_words.find(AbslView(word)); it != vocab_.whole_words.end()) {
      ids->push_back(it->second);
      return;
    }
  }
  if (word.size() <= kMaxCachedWord || !vocab_.may_cut) {
    EncodePart(word, ids);
    return;
  }
  size_t begin = 0;
  uint32_t before = 0;
  for (size_t i = 0; i < word.size();) {
    const std::string_view rest = word.substr(i);
    const uint32_t c = vocab_.byte_level ? static_cast<uint8_t>(rest[0]) : Utf8Decode(rest);
    if (i > begin && !vocab_.joints.contains(BpeVocabulary::Pair(before, c))) {
      EncodePart(word.substr(begin, i - begin), ids);
      begin = i;
    }
    before = c;
    i += vocab_.byte_level ? 1 : Utf8CharLength(rest);
  }
  EncodePart(word.substr(begin), ids);
}

void BpeModel::EncodePart(std::string_view part, std::vector<int32_t>* ids) const {
  if (part.size() > kMaxCachedWord) {
    MergePart(part, ids);
    return;
  }
  Shard& shard = cache_[std::hash<std::string_view>()(part) % kShards];
  {
    MutexLock lock(shard.mu);
    if (const auto it = shard.words.find(AbslView(part)); it != shard.words.end()) {
      ids->insert(ids->end(), it->second.begin(), it->second.end());
      return;
    }
  }
  const size_t begin = ids->size();
  MergePart(part, ids);
  MutexLock lock(shard.mu);
  if (shard.words.size() >= kShardEntries) shard.words.clear();
  shard.words.try_emplace(std::string(part), ids->begin() + static_cast<std::ptrdiff_t>(begin),
                          ids->end());
}

void BpeModel::MergePart(std::string_view part, std::vector<int32_t>* ids) const {
  Symbols symbols(part.size());
  FirstSymbols(part, &symbols);
  MergeAll(&symbols);
  bool after_unk = false;
  for (uint32_t at = 0; at < symbols.end(); at = symbols.Next(at)) {
    const int32_t id = symbols.id(at);
    if (id >= 0 && (!vocab_.fall_back_last || id < vocab_.size)) {
      ids->push_back(id);
      after_unk = false;
    } else {
      FallBack(part.substr(at, symbols.size(at)), ids, &after_unk);
    }
  }
}

// As `tokenizers` adds them, also in where an unknown symbol stands beside bytes that have tokens.
void BpeModel::FirstSymbols(std::string_view part, Symbols* symbols) const {
  uint32_t unknown = 0;  // bytes of unknown symbols not yet added
  const auto add_unknown = [&] {
    if (unknown > 0) symbols->Append(vocab_.unk, unknown);
    unknown = 0;
  };
  for (size_t i = 0; i < part.size();) {
    const auto size = static_cast<uint32_t>(vocab_.byte_level ? 1 : Utf8CharLength(part.substr(i)));
    const std::string_view bytes = part.substr(i, size);
    i += size;
    const int32_t id = vocab_.byte_level ? vocab_.byte_tokens[static_cast<uint8_t>(bytes[0])]
                                         : CharToken(Utf8Decode(bytes));
    if (id >= 0 || vocab_.fall_back_last) {
      add_unknown();
      symbols->Append(id, size);
    } else if (!vocab_.byte_level && HasBytes(bytes)) {
      for (char b : bytes) symbols->Append(vocab_.byte_tokens[static_cast<uint8_t>(b)], 1);
    } else if (vocab_.unk >= 0) {
      if (!vocab_.fuse_unk) add_unknown();
      unknown += size;
    } else {
      symbols->Skip(size);
    }
  }
  add_unknown();
}

void BpeModel::MergeAll(Symbols* symbols) const {
  std::vector<uint64_t> queue;  // (rank, place of the left symbol), the lowest first
  queue.reserve(symbols->end());
  const std::greater<> lowest_first;
  const auto target_at = [&](uint32_t left) -> const Target* {
    const uint32_t right = symbols->Next(left);
    if (right >= symbols->end()) return nullptr;
    const auto it = merges_.find(PairKey(symbols->id(left), symbols->id(right)));
    return it == merges_.end() ? nullptr : &it->second;
  };
  for (uint32_t at = 0; at < symbols->end(); at = symbols->Next(at)) {
    if (const Target* target = target_at(at)) {
      queue.push_back(BpeVocabulary::Pair(target->rank, at));
    }
  }
  std::make_heap(queue.begin(), queue.end(), lowest_first);
  const auto consider = [&](uint32_t at) {
    if (const Target* target = target_at(at)) {
      queue.push_back(BpeVocabulary::Pair(target->rank, at));
      std::push_heap(queue.begin(), queue.end(), lowest_first);
    }
  };
  while (!queue.empty()) {
    std::pop_heap(queue.begin(), queue.end(), lowest_first);
    const auto rank = static_cast<uint32_t>(queue.back() >> 32);
    const auto at = static_cast<uint32_t>(queue.back());
    queue.pop_back();
    if (symbols->id(at) == kMerged) continue;
    const Target* target = target_at(at);
    if (target == nullptr) continue;
    // An entry is stale when one of its symbols has merged since.
    const bool valid =
        target->rank == rank || (rank < results_.size() && results_[rank] == target->result);
    if (!valid) continue;
    symbols->Merge(at, symbols->Next(at), target->result);
    if (at > 0) consider(symbols->Previous(at));
    consider(at);
  }
}

bool BpeModel::HasBytes(std::string_view bytes) const {
  return std::all_of(bytes.begin(), bytes.end(),
                     [&](char b) { return vocab_.byte_tokens[static_cast<uint8_t>(b)] >= 0; });
}

void BpeModel::FallBack(std::string_view bytes, std::vector<int32_t>* ids, bool* after_unk) const {
  if (HasBytes(bytes)) {
    for (char b : bytes) ids->push_back(vocab_.byte_tokens[static_cast<uint8_t>(b)]);
    *after_unk = false;
    return;
  }
  if (vocab_.unk >= 0 && !(vocab_.fuse_unk && *after_unk)) ids->push_back(vocab_.unk);
  *after_unk = true;
}

}  // namespace baton
