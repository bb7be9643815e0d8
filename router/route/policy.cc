#include "router/route/policy.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/strings.h"
#include "common/prefix_hash/space.h"

namespace baton {
namespace {

std::vector<size_t> Rotated(size_t size, uint64_t start) {
  std::vector<size_t> order(size);
  for (size_t i = 0; i < size; ++i) order[i] = (start + i) % size;
  return order;
}

}  // namespace

std::vector<size_t> OrderByPrefix(std::string_view prefix, absl::Span<const std::string> nodes,
                                  absl::Span<const int64_t> loads) {
  const int64_t total = std::accumulate(loads.begin(), loads.end(), int64_t{0});
  const auto overloaded = [&](size_t i) {
    return loads[i] > 2 * total / static_cast<int64_t>(nodes.size()) + 2;
  };
  std::vector<std::pair<std::pair<bool, std::string>, size_t>> scored;
  for (size_t i = 0; i < nodes.size(); ++i) {
    scored.push_back({{overloaded(i), ContentDigest(Cat(prefix, "@", nodes[i]))}, i});
  }
  std::sort(scored.begin(), scored.end());
  std::vector<size_t> order;
  order.reserve(scored.size());
  for (const auto& [score, index] : scored) order.push_back(index);
  return order;
}

std::unique_ptr<Policy> Policy::Make(PolicyKind kind) {
  if (kind == PolicyKind::kRoundRobin) return std::make_unique<RoundRobinPolicy>();
  return std::make_unique<LeastLoadedPolicy>();
}

uint64_t RoundRobinPolicy::Next(const std::string& group) {
  MutexLock lock(mu_);
  return counters_[group]++;
}

size_t RoundRobinPolicy::Pick(const std::string& group, absl::Span<const int64_t> loads) {
  return Next(group) % loads.size();
}

std::vector<size_t> RoundRobinPolicy::Order(const std::string& group,
                                            absl::Span<const int64_t> loads) {
  return loads.empty() ? std::vector<size_t>() : Rotated(loads.size(), Next(group));
}

size_t LeastLoadedPolicy::Pick(const std::string& group, absl::Span<const int64_t> loads) {
  if (loads.size() == 1) return 0;
  MutexLock lock(mu_);
  size_t a = random_() % loads.size();
  size_t b = random_() % (loads.size() - 1);
  if (b >= a) ++b;
  if (loads[a] != loads[b]) return loads[a] < loads[b] ? a : b;
  if (a > b) std::swap(a, b);
  return ties_++ % 2 == 0 ? a : b;
}

std::vector<size_t> LeastLoadedPolicy::Order(const std::string& group,
                                             absl::Span<const int64_t> loads) {
  if (loads.empty()) return {};
  MutexLock lock(mu_);
  std::vector<size_t> order = Rotated(loads.size(), ties_++);
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t x, size_t y) { return loads[x] < loads[y]; });
  return order;
}

}  // namespace baton
