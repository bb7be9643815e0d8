#include "common/model/weight_store.h"

#include <utility>

namespace baton {

std::optional<PackedMatrix> WeightStore::Find(const std::string& key) const {
  MutexLock lock(mu_);
  const auto it = matrices_.find(key);
  return it == matrices_.end() ? std::nullopt : it->second.Lock();
}

PackedMatrix WeightStore::Add(const std::string& key, PackedMatrix matrix) {
  MutexLock lock(mu_);
  std::erase_if(matrices_, [](const auto& entry) { return !entry.second.Lock(); });
  WeakPackedMatrix& held = matrices_[key];
  if (auto first = held.Lock()) return *std::move(first);
  held = WeakPackedMatrix(matrix);
  return matrix;
}

std::int64_t WeightStore::bytes() const {
  MutexLock lock(mu_);
  std::int64_t sum = 0;
  for (const auto& [key, weak] : matrices_) {
    if (const auto matrix = weak.Lock()) sum += static_cast<std::int64_t>(matrix->bytes());
  }
  return sum;
}

}  // namespace baton
