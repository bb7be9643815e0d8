// Planning of CUDA launches in plain C++, tested without a GPU: grids, splits, shared memory,
// workspaces and batch buckets.
//
// A plan depends on sizes only, never on values, so that a recorded CUDA graph stays valid while
// contexts grow below the plan's limits. Workspaces come from the caller; a plan says how large.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace baton {

// A one-dimensional launch over `rows` x `cols` elements.
struct RowLaunch {
  int blocks = 0;   // 0: nothing to do
  int threads = 0;  // per block, a multiple of 32
};

// One block per row (capped at `max_blocks`, rows are then strided), as many threads as the row
// has use for.
RowLaunch PlanRows(std::int64_t rows, std::int64_t cols, int max_blocks);

// Reductions over long rows (logits): each row is cut into `splits` ranges of `cols_per_split`
// columns, one block each; a second launch merges a row's partial results.
struct ReducePlan {
  int splits = 0;  // 0: nothing to do
  std::int64_t cols_per_split = 0;
  int threads = 0;
  std::size_t workspace_floats = 0;  // rows * splits * 2
};
ReducePlan PlanReduce(std::int64_t rows, std::int64_t cols, int sm_count);

// What attention needs to know of a batch.
struct AttentionSizes {
  int q_heads = 0;
  int kv_heads = 0;  // divides q_heads
  int head_dim = 0;  // multiple of 8, at most 256
  // Pages of the longest head of any task: sum over its segments of ceil(num_rows / 16).
  int max_pages = 0;
  int sm_count = 0;  // of the device
};

// Queries [q_begin, q_end) of one task, as row indices into the batch's q matrix.
struct AttentionTile {
  std::int32_t task = 0;
  std::int32_t q_begin = 0;
  std::int32_t q_end = 0;
};

// How a batch of tasks runs. Tasks with few query rows (decode, verification) take the split
// kernel: a head's pages are cut into `splits` ranges, whose partial results a second launch
// merges. The others (prefill) take the tiled kernel, one block per tile and KV head.
struct AttentionPlan {
  // The split kernel's tiles first, then the tiled kernel's. The caller copies them to the device.
  std::vector<AttentionTile> tiles;
  int split_tiles = 0;

  // Split kernel.
  int split_rows = 0;  // query rows (queries x heads) of a block: 1, 4 or 8
  int head_tiles = 0;  // blocks per KV head, when its group has more than 8 query heads
  int splits = 0;
  int pages_per_split = 0;
  int split_threads = 0;
  std::size_t split_shared_bytes = 0;
  std::size_t workspace_floats = 0;  // partial outputs, each with its max and sum; 0 for 1 split

  // Tiled kernel.
  int tile_rows = 0;  // query rows and keys of a tile: 64, or 32 for a head_dim above 128
  std::size_t tile_shared_bytes = 0;

  int tiled_tiles() const { return static_cast<int>(tiles.size()) - split_tiles; }
};

// q_begin [tasks + 1]: the batch's query rows of each task, ascending from 0. A task may have none.
AttentionPlan PlanAttention(const AttentionSizes& sizes, const std::int32_t* q_begin, int tasks);

// Query heads [first, first + count) of KV head's group that head tile `tile` of a block handles.
struct HeadRange {
  int first = 0;
  int count = 0;
};
constexpr int kMaxSplitRows = 8;
constexpr HeadRange HeadsOfTile(int group, int tile) {
  const int first = tile * kMaxSplitRows;
  const int left = group - first;
  return {first, left < kMaxSplitRows ? left : kMaxSplitRows};
}

// Key mass: one block per tile of `keys` keys and KV head, looping over all queries. A segment
// starts a new tile.
struct KeyMassPlan {
  int keys = 0;   // of a tile: 64, or 32 for a head_dim above 128
  int tiles = 0;  // of the longest head; 0: nothing to do
  std::size_t shared_bytes = 0;
};
// segment_rows [segments], segment_offsets [kv_heads + 1] as in AttentionTask, in host memory.
KeyMassPlan PlanKeyMass(int head_dim, int kv_heads, const std::int32_t* segment_rows,
                        const std::int32_t* segment_offsets);

// Product of up to 8 rows with a matrix of codes: one warp takes `features` output features.
struct CodeProductPlan {
  int rows = 0;      // rows of x the kernel is compiled for: 1, 2, 4 or 8
  int features = 0;  // per warp
  int threads = 0;
  std::int64_t blocks = 0;  // 0: nothing to do
};
constexpr int kMaxCodeProductRows = 8;
CodeProductPlan PlanCodeProduct(std::int64_t rows, std::int64_t features);

// Batch sizes that decode steps are recorded for, ascending up to `max_batch` (>= 1): powers of
// two up to 8, multiples of 8 up to 64, then multiples of 32; `max_batch` itself is the last.
std::vector<int> GraphBuckets(int max_batch);
// The smallest bucket that holds `batch`, or 0 if none does.
int BucketFor(const std::vector<int>& buckets, int batch);

}  // namespace baton
