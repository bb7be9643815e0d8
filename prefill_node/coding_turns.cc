#include "prefill_node/coding_turns.h"

namespace baton {

CodingTurns::CodingTurns() : table_(std::make_shared<Table>()) {}

CodingTurns::Turn::Turn(std::shared_ptr<Table> table, Key key)
    : table_(std::move(table)), key_(std::move(key)) {}

CodingTurns::Turn::~Turn() {
  std::vector<std::function<void()>> again;
  {
    MutexLock lock(table_->mu);
    const auto it = table_->waiting.find(key_);
    again = std::move(it->second);
    table_->waiting.erase(it);
  }
  for (const auto& call : again) call();
}

std::unique_ptr<CodingTurns::Turn> CodingTurns::Take(const Key& key, std::function<void()> again) {
  {
    MutexLock lock(table_->mu);
    const auto [it, taken] = table_->waiting.try_emplace(key);
    if (!taken) {
      it->second.push_back(std::move(again));
      return nullptr;
    }
  }
  return std::make_unique<Turn>(table_, key);
}

std::size_t CodingTurns::taken() const {
  MutexLock lock(table_->mu);
  return table_->waiting.size();
}

}  // namespace baton
