#include "common/engine/scheduler.h"

#include <algorithm>

#include "common/prefix_hash/block_hash.h"
#include "kernels/kv_page.h"

namespace baton {

std::vector<std::int32_t> SplitBudget(std::span<const PromptDemand> demands, std::int32_t budget) {
  std::vector<std::int32_t> rows(demands.size(), 0);
  for (std::size_t i = 0; i < demands.size() && budget > 0; ++i) {
    const PromptDemand& demand = demands[i];
    std::int32_t end = std::min(demand.end, demand.begin + budget);
    if (demand.whole_pages && end < demand.end) end -= end % kPageRows;
    rows[i] = std::max(0, end - demand.begin);
    budget -= rows[i];
  }
  return rows;
}

std::int32_t UsableCachedTokens(std::int64_t blocks, std::int64_t total, bool all) {
  const std::int64_t limit = (all ? total : total - 1) / kBlockTokens;
  return static_cast<std::int32_t>(std::min(blocks, limit) * kBlockTokens);
}

}  // namespace baton
