// Who goes first: the engine's decisions as pure arithmetic over plain data.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <vector>

namespace baton {

// Order of service: higher priority first, then first come, first served. The last one in this
// order is the first to be pre-empted.
struct ServiceKey {
  int priority = 0;
  std::uint64_t arrival = 0;

  friend constexpr std::strong_ordering operator<=>(const ServiceKey& a, const ServiceKey& b) {
    if (const auto by_priority = b.priority <=> a.priority; by_priority != 0) return by_priority;
    return a.arrival <=> b.arrival;
  }
  friend constexpr bool operator==(const ServiceKey&, const ServiceKey&) = default;
};

// Rows [begin, end) of a prompt that still have to run.
struct PromptDemand {
  std::int32_t begin = 0;
  std::int32_t end = 0;
  bool whole_pages = false;  // a chunk ends at a multiple of 16 or at `end`
};

// Rows for each demand in this step, in order, at most `budget` in all: a decode step never waits
// for more than one budget of prompt rows.
std::vector<std::int32_t> SplitBudget(std::span<const PromptDemand> demands, std::int32_t budget);

// Tokens of cached blocks that may be used out of `blocks` found, when `total` tokens have to be in
// the cache and, unless `all` is allowed, the last one has to run for its logits.
std::int32_t UsableCachedTokens(std::int64_t blocks, std::int64_t total, bool all);

}  // namespace baton
