// Attention of few query rows over long contexts (flash decoding): blocks share out a head's
// pages, each of a block's warps folds whole pages into an online softmax of its own, and a second
// launch merges the blocks' results.
#include <cuda_runtime.h>

#include "kernels/cuda/attention_common.cuh"

namespace baton::cuda {
namespace {

// Which query rows a block computes: `heads` query heads of `queries` queries of one task.
struct BlockRows {
  AttentionTile tile;
  int kv_head;
  int first_head;  // of all query heads
  int heads;
  int rows;

  __device__ BlockRows(const AttentionShape& shape, int head_tiles, const AttentionTile* tiles,
                       int tile_index, int y)
      : tile(tiles[tile_index]), kv_head(y / head_tiles) {
    const int group = shape.q_heads / shape.kv_heads;
    first_head = kv_head * group + y % head_tiles * kMaxSplitRows;
    const int left = (kv_head + 1) * group - first_head;
    heads = left < kMaxSplitRows ? left : kMaxSplitRows;
    rows = (tile.q_end - tile.q_begin) * heads;
  }
  __device__ std::int64_t Query(int row) const { return tile.q_begin + row / heads; }
  __device__ int Head(int row) const { return first_head + row % heads; }
};

// Where one block's results lie in the workspace: [block][row][split][head_dim + 2].
__device__ __forceinline__ float* Partial(float* workspace, std::int64_t block, int rows, int row,
                                          int splits, int split, int head_dim) {
  return workspace + ((block * rows + row) * splits + split) * (head_dim + 2);
}

// A warp's online softmax of kRows rows. Lane l holds outputs of 8 dimensions from
// 8 * (l % lanes per key) on, over every (32 / lanes per key)th key.
template <int kRows>
struct WarpState {
  float max[kRows];  // the same in all lanes
  float sum[kRows];  // each lane's share
  float o[kRows][8];
};

// Adds up over the 16 lanes that share a key half: lane 2 i + half ends with the total of key
// 8 * half + i % 8.
__device__ __forceinline__ float SumOverDims(float (&s)[8]) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
#pragma unroll
  for (int bit = 2, n = 4; n > 0; bit *= 2, n /= 2) {
    // Keeps the half of the values whose key has this lane's bit, sends the other.
    const bool high = (lane & bit) != 0;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const float mine = high ? s[2 * i + 1] : s[2 * i];
      const float theirs = high ? s[2 * i] : s[2 * i + 1];
      s[i] = mine + __shfl_xor_sync(kFullWarp, theirs, bit);
    }
  }
  return s[0] + __shfl_xor_sync(kFullWarp, s[0], 16);
}

// Folds one page into the warp's state. `p` [kRows][16] is the warp's shared scratch.
template <DType D, int kRows>
__device__ void FoldPage(const AttentionShape& shape, const KvPageLayout& layout,
                         const std::byte* page, int valid, const float* bias, const float* q,
                         const std::int32_t (&q_position)[kRows], WarpState<kRows>* state,
                         float* p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int hd = layout.head_dim;
  float s[kRows][8] = {};
  const std::byte* k = page + layout.k_offset();
#pragma unroll 4
  for (int d = lane / 2; d < hd; d += 16) {
    float x[8];
    LoadEight<D>(k, d * kPageRows + lane % 2 * 8, x);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float qd = q[r * hd + d];
#pragma unroll
      for (int i = 0; i < 8; ++i) s[r][i] = fmaf(qd, x[i], s[r][i]);
    }
  }
  const int key = lane % 2 * 8 + lane / 2 % 8;
  const std::int32_t position = key < valid ? PagePositions(page)[key] : 0;
  const float shift = bias != nullptr && key < valid ? bias[key] : 0.0f;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float dot = SumOverDims(s[r]);
    const bool visible = key < valid && KeyVisible(shape, q_position[r], position);
    const float score = visible ? dot * shape.scale + shift : -__builtin_inff();
    const float max = fmaxf(state->max[r], WarpMax(score));
    const float e = ExpBelow(score, max);
    const float alpha = max == -__builtin_inff() ? 1.0f : ExpT(state->max[r] - max);
    state->max[r] = max;
    // Lanes 16 and up hold the same keys once more.
    state->sum[r] = fmaf(state->sum[r], alpha, lane < 16 ? e : 0.0f);
    if (lane < 16) p[r * kPageRows + key] = e;
#pragma unroll
    for (int i = 0; i < 8; ++i) state->o[r][i] *= alpha;
  }
  __syncwarp();
  const std::byte* v = page + layout.v_offset();
  const int lanes = hd / 8, keys = 32 / lanes;
  if (lane < lanes * keys) {
#pragma unroll 4
    for (int j = lane / lanes; j < valid; j += keys) {
      float x[8];
      LoadEight<D>(v, j * hd + lane % lanes * 8, x);
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const float pj = p[r * kPageRows + j];
#pragma unroll
        for (int i = 0; i < 8; ++i) state->o[r][i] = fmaf(pj, x[i], state->o[r][i]);
      }
    }
  }
  __syncwarp();
}

// The warp's state to shared memory: o [kRows][hd], max and sum [kRows].
template <int kRows>
__device__ void StoreState(const WarpState<kRows>& state, int hd, float* o, float* max,
                           float* sum) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int lanes = hd / 8, keys = 32 / lanes;
  // One group of lanes after the other adds its keys' share.
  for (int turn = 0; turn < keys; ++turn) {
    if (lane / lanes == turn) {
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          float* at = o + r * hd + lane % lanes * 8 + i;
          *at = turn == 0 ? state.o[r][i] : *at + state.o[r][i];
        }
      }
    }
    __syncwarp();
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    const float total = WarpSum(state.sum[r]);
    if (lane == 0) {
      max[r] = state.max[r];
      sum[r] = total;
    }
  }
}

// Weighs `count` partial results: maxima at max[i * stride], sums likewise.
__device__ __forceinline__ SoftmaxState MergeAll(const float* max, const float* sum, int count,
                                                 int stride) {
  SoftmaxState s = EmptySoftmax();
  for (int i = 0; i < count; ++i) s.max = fmaxf(s.max, max[i * stride]);
  for (int i = 0; i < count; ++i) {
    s.sum = fmaf(sum[i * stride], ExpBelow(max[i * stride], s.max), s.sum);
  }
  return s;
}

__device__ __forceinline__ void WriteRow(const AttentionArgs& a, const AttentionShape& shape,
                                         std::int64_t query, int head, SoftmaxState s, int d,
                                         float o) {
  const bool empty = s.max == -__builtin_inff();
  if (d < shape.head_dim) {
    a.out[query * a.ldo + static_cast<std::int64_t>(head) * shape.head_dim + d] =
        empty ? 0.0f : o * (1.0f / s.sum);
  }
  if (d == 0 && a.lse != nullptr) a.lse[query * shape.q_heads + head] = LogSumExpOf(s);
}

// Grid: (splits, kv_heads * head_tiles, tiles).
template <DType D, int kRows>
__global__ void SplitKernel(AttentionShape shape, KvPageLayout layout, int splits,
                            int pages_per_split, int head_tiles, AttentionArgs a) {
  const int hd = layout.head_dim;
  const int warps = static_cast<int>(blockDim.x) / 32, warp = static_cast<int>(threadIdx.x) / 32;
  const BlockRows rows(shape, head_tiles, a.tiles, static_cast<int>(blockIdx.z),
                       static_cast<int>(blockIdx.y));
  float* q = DynamicShared();                // [kRows][hd]
  float* p = q + kRows * hd;                 // [warps][kRows][16]
  float* o = p + warps * kRows * kPageRows;  // [warps][kRows][hd]
  float* max = o + warps * kRows * hd;       // [warps][kRows]
  float* sum = max + warps * kRows;          // [warps][kRows]
  for (int i = static_cast<int>(threadIdx.x); i < kRows * hd; i += static_cast<int>(blockDim.x)) {
    const int row = i / hd;
    q[i] =
        row < rows.rows
            ? a.q[rows.Query(row) * a.ldq + static_cast<std::int64_t>(rows.Head(row)) * hd + i % hd]
            : 0.0f;
  }
  WarpState<kRows> state;
  std::int32_t q_position[kRows], q_min = INT32_MAX, q_max = INT32_MIN;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    state.max[r] = -__builtin_inff();
    state.sum[r] = 0.0f;
#pragma unroll
    for (int i = 0; i < 8; ++i) state.o[r][i] = 0.0f;
    q_position[r] = a.q_positions[rows.Query(r < rows.rows ? r : 0)];
    q_min = q_position[r] < q_min ? q_position[r] : q_min;
    q_max = q_position[r] > q_max ? q_position[r] : q_max;
  }
  __syncthreads();
  const int begin = static_cast<int>(blockIdx.x) * pages_per_split;
  const int end = begin + pages_per_split;
  int first = 0;  // index of the segment's first page among the head's pages
  const std::int32_t* offsets =
      a.segment_offsets + static_cast<std::int64_t>(rows.tile.task) * shape.kv_heads + rows.kv_head;
  for (int i = offsets[0]; i < offsets[1] && first < end; ++i) {
    const KvSegment seg = a.segments[i];
    const int pages = (seg.num_rows + kPageRows - 1) / kPageRows;
    const int from = begin > first ? begin - first : 0;
    const int to = end - first < pages ? end - first : pages;
    for (int page = from + warp; page < to; page += warps) {
      const int row = page * kPageRows, left = seg.num_rows - row;
      const int valid = left < kPageRows ? left : kPageRows;
      if (!RowsVisible(shape, seg, row, row + valid, q_min, q_max)) continue;
      FoldPage<D, kRows>(shape, layout, seg.pages[page], valid,
                         seg.bias == nullptr ? nullptr : seg.bias + row, q, q_position, &state,
                         p + warp * kRows * kPageRows);
    }
    first += pages;
  }
  StoreState<kRows>(state, hd, o + warp * kRows * hd, max + warp * kRows, sum + warp * kRows);
  __syncthreads();
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
  for (int r = 0; r < rows.rows; ++r) {
    const SoftmaxState s = MergeAll(max + r, sum + r, warps, kRows);
    // One split writes the result itself and has no workspace.
    float* part =
        splits > 1 ? Partial(a.workspace, block, kRows, r, splits, static_cast<int>(blockIdx.x), hd)
                   : nullptr;
    for (int d = static_cast<int>(threadIdx.x); d < hd; d += static_cast<int>(blockDim.x)) {
      float total = 0.0f;
      for (int w = 0; w < warps; ++w) {
        total = fmaf(o[(w * kRows + r) * hd + d], ExpBelow(max[w * kRows + r], s.max), total);
      }
      if (part == nullptr) {
        WriteRow(a, shape, rows.Query(r), rows.Head(r), s, d, total);
      } else {
        part[d] = total;
      }
    }
    if (part != nullptr && threadIdx.x == 0) {
      part[hd] = s.max;
      part[hd + 1] = s.sum;
    }
  }
}

// Grid: (kRows, kv_heads * head_tiles, tiles).
__global__ void MergeKernel(AttentionShape shape, int splits, int head_tiles, AttentionArgs a) {
  const BlockRows rows(shape, head_tiles, a.tiles, static_cast<int>(blockIdx.z),
                       static_cast<int>(blockIdx.y));
  const int row = static_cast<int>(blockIdx.x), hd = shape.head_dim, stride = hd + 2;
  if (row >= rows.rows) return;
  const std::int64_t block = static_cast<std::int64_t>(blockIdx.z) * gridDim.y + blockIdx.y;
  const float* part = Partial(a.workspace, block, static_cast<int>(gridDim.x), row, splits, 0, hd);
  const SoftmaxState s = MergeAll(part + hd, part + hd + 1, splits, stride);
  for (int d = static_cast<int>(threadIdx.x); d < hd; d += static_cast<int>(blockDim.x)) {
    float total = 0.0f;
    for (int i = 0; i < splits; ++i) {
      total = fmaf(part[i * stride + d], ExpBelow(part[i * stride + hd], s.max), total);
    }
    WriteRow(a, shape, rows.Query(row), rows.Head(row), s, d, total);
  }
}

using SplitFn = void (*)(AttentionShape, KvPageLayout, int, int, int, AttentionArgs);

template <DType D>
SplitFn SplitKernelFor(int rows) {
  return rows == 1 ? SplitKernel<D, 1> : rows == 4 ? SplitKernel<D, 4> : SplitKernel<D, 8>;
}

}  // namespace

LaunchStatus AttentionSplit(const AttentionShape& shape, const KvPageLayout& layout,
                            const AttentionPlan& plan, const AttentionArgs& args, Stream stream) {
  const SplitFn kernel = layout.dtype == DType::kF32 ? SplitKernelFor<DType::kF32>(plan.split_rows)
                         : layout.dtype == DType::kBF16
                             ? SplitKernelFor<DType::kBF16>(plan.split_rows)
                             : SplitKernelFor<DType::kF16>(plan.split_rows);
  const unsigned heads = static_cast<unsigned>(shape.kv_heads * plan.head_tiles);
  // A grid's third dimension ends at 65535.
  constexpr int kMaxTiles = 65535;
  AttentionArgs part = args;
  LaunchStatus status;
  for (int done = 0; done < plan.split_tiles && status.ok(); done += kMaxTiles) {
    const int left = plan.split_tiles - done;
    const unsigned tiles = static_cast<unsigned>(left < kMaxTiles ? left : kMaxTiles);
    part.tiles = args.tiles + done;
    if (plan.splits > 1) {
      part.workspace = args.workspace +
                       plan.workspace_floats / static_cast<std::size_t>(plan.split_tiles) * done;
    }
    status =
        Launch("attention_split", kernel,
               {dim3(static_cast<unsigned>(plan.splits), heads, tiles),
                static_cast<unsigned>(plan.split_threads), plan.split_shared_bytes},
               stream, shape, layout, plan.splits, plan.pages_per_split, plan.head_tiles, part);
    if (!status.ok() || plan.splits == 1) continue;
    constexpr unsigned kMergeThreads = 128;
    status = Launch("attention_merge", MergeKernel,
                    {dim3(static_cast<unsigned>(plan.split_rows), heads, tiles), kMergeThreads, 0},
                    stream, shape, plan.splits, plan.head_tiles, part);
  }
  return status;
}

}  // namespace baton::cuda
