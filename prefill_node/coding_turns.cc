#include "prefill_node/coding_turns.h"

namespace baton {

CodingTurns::CodingTurns() : table_(std::make_shared<Table>()) {}

CodingTurns::Turn::Turn(std::shared_ptr<Table> table, std::vector<Key> keys)
    : table_(std::move(table)), keys_(std::move(keys)) {}

CodingTurns::Turn::~Turn() {
  std::vector<std::function<void()>> again;
  {
    MutexLock lock(table_->mu);
    ++table_->ended;
    for (const Key& key : keys_) {
      auto taken = table_->waiting.extract(key);
      for (auto& call : taken.mapped()) again.push_back(std::move(call));
    }
  }
  for (const auto& call : again) call();
}

std::unique_ptr<CodingTurns::Turn> CodingTurns::Take(const std::vector<Key>& blocks,
                                                     std::function<void()> again) {
  std::vector<Key> keys;
  {
    MutexLock lock(table_->mu);
    if (auto it = table_->waiting.find(blocks.front()); it != table_->waiting.end()) {
      it->second.push_back(std::move(again));
      return nullptr;
    }
    for (const Key& key : blocks) {
      if (table_->waiting.try_emplace(key).second) keys.push_back(key);
    }
  }
  return std::make_unique<Turn>(table_, std::move(keys));
}

std::size_t CodingTurns::blocks_taken() const {
  MutexLock lock(table_->mu);
  return table_->waiting.size();
}

std::uint64_t CodingTurns::ended() const {
  MutexLock lock(table_->mu);
  return table_->ended;
}

}  // namespace baton
