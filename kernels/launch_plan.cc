#include "kernels/launch_plan.h"

#include <algorithm>

namespace baton {
namespace {

constexpr int kWarp = 32;
constexpr int kMaxThreads = 256;
constexpr int kMinPagesPerSplit = 8;  // 128 keys: below that the merge costs more than it saves
constexpr int kMaxSplits = 64;

int CeilDiv(std::int64_t a, std::int64_t b) { return static_cast<int>((a + b - 1) / b); }

}  // namespace

RowLaunch PlanRows(std::int64_t rows, std::int64_t cols, int max_blocks) {
  RowLaunch plan;
  if (rows <= 0 || cols <= 0) return plan;
  plan.blocks = static_cast<int>(std::min<std::int64_t>(rows, std::max(1, max_blocks)));
  const std::int64_t warps =
      std::clamp<std::int64_t>((cols + 4 * kWarp - 1) / (4 * kWarp), 1, kMaxThreads / kWarp);
  plan.threads = static_cast<int>(warps) * kWarp;
  return plan;
}

DecodePlan PlanDecode(int tasks, int q_heads, int kv_heads, int head_dim, int max_pages,
                      int sm_count) {
  DecodePlan plan;
  const std::int64_t units = static_cast<std::int64_t>(tasks) * kv_heads;
  // Two waves of blocks fill the chip; fewer splits when the context is short.
  const int want = CeilDiv(2LL * sm_count, units);
  const int most = std::min(kMaxSplits, CeilDiv(max_pages, kMinPagesPerSplit));
  const int splits = std::clamp(want, 1, std::max(1, most));
  plan.pages_per_split = std::max(1, CeilDiv(max_pages, splits));
  plan.splits = std::max(1, CeilDiv(max_pages, plan.pages_per_split));
  const int group = q_heads / kv_heads;
  plan.threads = 128;
  // Queries of the group, the probabilities of one page per warp, and each warp's partial state.
  const std::size_t warps = static_cast<std::size_t>(plan.threads) / kWarp;
  plan.shared_bytes =
      sizeof(float) * static_cast<std::size_t>(group) *
      (static_cast<std::size_t>(head_dim) + warps * (static_cast<std::size_t>(head_dim) + 2 + 16));
  plan.workspace_floats = static_cast<std::size_t>(tasks) * q_heads * plan.splits *
                          (static_cast<std::size_t>(head_dim) + 2);
  return plan;
}

}  // namespace baton
