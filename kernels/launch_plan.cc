#include "kernels/launch_plan.h"

#include <algorithm>

#include "kernels/kv_page.h"

namespace baton {
namespace {

constexpr int kWarp = 32;
constexpr int kMaxThreads = 256;
constexpr int kMinPagesPerSplit = 8;  // 128 keys: below that the merge costs more than it saves
constexpr int kMaxSplits = 64;
constexpr int kSplitThreads = 128;
// From here on a tile's rows fill the tiled kernel at least half, and it reads each key once for
// all of them.
constexpr std::int64_t kTiledFromRows = 32;
constexpr std::int64_t kMinColsPerSplit = 4096;  // 16 KB: a block's start costs about as much

std::int64_t CeilDiv(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// 1, 2, 4 or 8.
int PowerOfTwo(std::int64_t n) {
  int p = 1;
  while (p < n && p < 8) p *= 2;
  return p;
}

void AddTiles(std::int32_t task, std::int32_t begin, std::int32_t end, std::int32_t step,
              std::vector<AttentionTile>* tiles) {
  for (std::int32_t q = begin; q < end; q += step) {
    tiles->push_back({task, q, std::min(end, q + step)});
  }
}

void PlanSplits(const AttentionSizes& sizes, AttentionPlan* plan) {
  const std::int64_t units =
      static_cast<std::int64_t>(plan->split_tiles) * sizes.kv_heads * plan->head_tiles;
  // Four blocks a multiprocessor keep enough loads in flight; fewer splits for short contexts.
  const std::int64_t want = CeilDiv(4LL * sizes.sm_count, units);
  const std::int64_t most =
      std::min<std::int64_t>(kMaxSplits, CeilDiv(sizes.max_pages, kMinPagesPerSplit));
  const std::int64_t splits = std::max<std::int64_t>(1, std::min(want, most));
  plan->pages_per_split =
      static_cast<int>(std::max<std::int64_t>(1, CeilDiv(sizes.max_pages, splits)));
  plan->splits =
      static_cast<int>(std::max<std::int64_t>(1, CeilDiv(sizes.max_pages, plan->pages_per_split)));
  plan->split_threads = kSplitThreads;
  // Queries; probabilities of a page per warp; each warp's outputs, max and sum.
  const std::size_t warps = kSplitThreads / kWarp;
  const std::size_t rows = static_cast<std::size_t>(plan->split_rows);
  const std::size_t dim = static_cast<std::size_t>(sizes.head_dim);
  plan->split_shared_bytes = sizeof(float) * rows * (dim + warps * (kPageRows + dim + 2));
  if (plan->splits > 1) {
    plan->workspace_floats =
        static_cast<std::size_t>(units) * rows * static_cast<std::size_t>(plan->splits) * (dim + 2);
  }
}

int TileKeys(int head_dim) { return head_dim > 128 ? 32 : 64; }

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

ReducePlan PlanReduce(std::int64_t rows, std::int64_t cols, int sm_count) {
  ReducePlan plan;
  if (rows <= 0 || cols <= 0) return plan;
  const std::int64_t want = CeilDiv(4LL * sm_count, rows);
  const std::int64_t most = std::min<std::int64_t>(kMaxSplits, CeilDiv(cols, kMinColsPerSplit));
  const std::int64_t splits = std::max<std::int64_t>(1, std::min(want, most));
  // A multiple of 4 keeps every range as aligned as its row.
  plan.cols_per_split = (CeilDiv(cols, splits) + 3) / 4 * 4;
  plan.splits = static_cast<int>(CeilDiv(cols, plan.cols_per_split));
  plan.threads = kMaxThreads;
  plan.workspace_floats =
      static_cast<std::size_t>(rows) * static_cast<std::size_t>(plan.splits) * 2;
  return plan;
}

AttentionPlan PlanAttention(const AttentionSizes& sizes, const std::int32_t* q_begin, int tasks) {
  AttentionPlan plan;
  const int group = sizes.q_heads / sizes.kv_heads;
  const int rows = TileKeys(sizes.head_dim);
  const auto tiled = [&](int t) {
    // A group wider than a tile only fits the split kernel, which cuts groups.
    return group <= rows &&
           static_cast<std::int64_t>(q_begin[t + 1] - q_begin[t]) * group >= kTiledFromRows;
  };
  std::int64_t most_rows = 0;
  const std::int32_t step = std::max(1, kMaxSplitRows / group);
  for (int t = 0; t < tasks; ++t) {
    if (tiled(t)) continue;
    AddTiles(t, q_begin[t], q_begin[t + 1], step, &plan.tiles);
    const std::int64_t queries = std::min(step, q_begin[t + 1] - q_begin[t]);
    most_rows = std::max(most_rows, queries * std::min(group, kMaxSplitRows));
  }
  plan.split_tiles = static_cast<int>(plan.tiles.size());
  if (plan.split_tiles > 0) {
    // What the kernel is compiled for: decoding with and without groups, and full tiles.
    plan.split_rows = most_rows <= 1 ? 1 : most_rows <= 4 ? 4 : kMaxSplitRows;
    plan.head_tiles = static_cast<int>(CeilDiv(group, kMaxSplitRows));
    PlanSplits(sizes, &plan);
  }
  const std::int32_t tile_step = std::max(1, rows / group);
  // Late queries see the most keys: first, so that the blocks finish together.
  for (int t = 0; t < tasks; ++t) {
    if (!tiled(t)) continue;
    const std::size_t first = plan.tiles.size();
    AddTiles(t, q_begin[t], q_begin[t + 1], tile_step, &plan.tiles);
    std::reverse(plan.tiles.begin() + static_cast<std::ptrdiff_t>(first), plan.tiles.end());
  }
  if (plan.tiled_tiles() > 0) {
    plan.tile_rows = rows;
    const std::size_t r = static_cast<std::size_t>(rows);
    const std::size_t dim = static_cast<std::size_t>(sizes.head_dim);
    // Queries, keys or values, probabilities (one float of padding a row).
    plan.tile_shared_bytes = sizeof(float) * (2 * r * dim + r * (r + 1));
  }
  return plan;
}

KeyMassPlan PlanKeyMass(int head_dim, int kv_heads, const std::int32_t* segment_rows,
                        const std::int32_t* segment_offsets) {
  KeyMassPlan plan;
  plan.keys = TileKeys(head_dim);
  for (int h = 0; h < kv_heads; ++h) {
    std::int64_t tiles = 0;
    for (std::int32_t i = segment_offsets[h]; i < segment_offsets[h + 1]; ++i) {
      tiles += CeilDiv(segment_rows[i], plan.keys);
    }
    plan.tiles = std::max(plan.tiles, static_cast<int>(tiles));
  }
  const std::size_t keys = static_cast<std::size_t>(plan.keys);
  // Queries, keys, and the sums of the 16 groups of rows.
  plan.shared_bytes = sizeof(float) * (2 * keys * static_cast<std::size_t>(head_dim) + 16 * keys);
  return plan;
}

CodeProductPlan PlanCodeProduct(std::int64_t rows, std::int64_t features) {
  CodeProductPlan plan;
  if (rows <= 0 || features <= 0) return plan;
  plan.rows = PowerOfTwo(rows);
  // Features share the reading of x; their sums must stay in registers.
  plan.features = plan.rows <= 2 ? 4 : 2;
  plan.threads = kMaxThreads;
  plan.blocks = CeilDiv(features, static_cast<std::int64_t>(plan.features) * (kMaxThreads / kWarp));
  return plan;
}

std::vector<int> GraphBuckets(int max_batch) {
  std::vector<int> buckets;
  for (int b = 1; b < max_batch; b += b < 8 ? b : b < 64 ? 8 : 32) buckets.push_back(b);
  buckets.push_back(max_batch);
  return buckets;
}

int BucketFor(const std::vector<int>& buckets, int batch) {
  const auto it = std::lower_bound(buckets.begin(), buckets.end(), batch);
  return it == buckets.end() ? 0 : *it;
}

}  // namespace baton
