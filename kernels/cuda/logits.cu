// Reductions over rows of logits: greedy sampling and surprisal. Blocks share out a row's columns;
// a second launch merges what they found.
#include <cuda_runtime.h>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device_utils.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/softmax_math.h"

namespace baton::cuda {
namespace {

constexpr unsigned kMergeThreads = 32;
constexpr int kNoIndex = INT32_MAX;

struct Best {
  float value;
  std::int32_t index;  // kNoIndex: nothing but NaN so far
};

// The larger value, of equals the lower index. A NaN never wins, -inf wins over nothing.
__device__ __forceinline__ Best Better(Best a, Best b) {
  const bool second = b.value > a.value || (b.value == a.value && b.index < a.index);
  return second ? b : a;
}

__device__ __forceinline__ Best WarpBest(Best x) {
  for (int step = 16; step > 0; step >>= 1) {
    x = Better(
        x, {__shfl_xor_sync(kFullWarp, x.value, step), __shfl_xor_sync(kFullWarp, x.index, step)});
  }
  return x;
}

__device__ __forceinline__ SoftmaxState WarpSoftmax(SoftmaxState s) {
  for (int step = 16; step > 0; step >>= 1) {
    s = MergeSoftmax(
        s, {__shfl_xor_sync(kFullWarp, s.max, step), __shfl_xor_sync(kFullWarp, s.sum, step)});
  }
  return s;
}

// Grid: (splits, rows). partial [rows][splits][2].
__global__ void ArgMaxKernel(const float* x, std::int64_t ldx, std::int64_t d,
                             std::int64_t cols_per_split, float* partial) {
  __shared__ float values[32];
  __shared__ std::int32_t indices[32];
  const float* row = x + blockIdx.y * ldx;
  const std::int64_t begin = blockIdx.x * cols_per_split;
  const std::int64_t end = begin + cols_per_split < d ? begin + cols_per_split : d;
  Best best = {-__builtin_inff(), kNoIndex};
  for (std::int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
    best = Better(best, {row[i], static_cast<std::int32_t>(i)});
  }
  best = WarpBest(best);
  if (threadIdx.x % 32 == 0) {
    values[threadIdx.x / 32] = best.value;
    indices[threadIdx.x / 32] = best.index;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned w = 1; w < blockDim.x / 32; ++w) best = Better(best, {values[w], indices[w]});
  float* out = partial + (static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * 2;
  out[0] = best.value;
  out[1] = BitsFloat(static_cast<std::uint32_t>(best.index));
}

// One warp per row.
__global__ void ArgMaxMergeKernel(const float* partial, int splits, std::int32_t* tokens) {
  const std::int64_t r = blockIdx.x;
  Best best = {-__builtin_inff(), kNoIndex};
  for (int i = static_cast<int>(threadIdx.x); i < splits; i += static_cast<int>(blockDim.x)) {
    const float* p = partial + (r * splits + i) * 2;
    best = Better(best, {p[0], static_cast<std::int32_t>(FloatBits(p[1]))});
  }
  best = WarpBest(best);
  if (threadIdx.x == 0) tokens[r] = best.index == kNoIndex ? -1 : best.index;
}

// Grid: (splits, rows). partial [rows][splits][2].
__global__ void SoftmaxKernel(const float* x, std::int64_t ldx, std::int64_t d,
                              std::int64_t cols_per_split, float* partial) {
  __shared__ float maxima[32], sums[32];
  const float* row = x + blockIdx.y * ldx;
  const std::int64_t begin = blockIdx.x * cols_per_split;
  const std::int64_t end = begin + cols_per_split < d ? begin + cols_per_split : d;
  SoftmaxState s = EmptySoftmax();
  for (std::int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) s = AddTerm(s, row[i]);
  s = WarpSoftmax(s);
  if (threadIdx.x % 32 == 0) {
    maxima[threadIdx.x / 32] = s.max;
    sums[threadIdx.x / 32] = s.sum;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (unsigned w = 1; w < blockDim.x / 32; ++w) s = MergeSoftmax(s, {maxima[w], sums[w]});
  float* out = partial + (static_cast<std::int64_t>(blockIdx.y) * gridDim.x + blockIdx.x) * 2;
  out[0] = s.max;
  out[1] = s.sum;
}

// One warp per row: merges the chunk's partial results into the state and picks the target's logit.
__global__ void SurprisalMergeKernel(const float* logits, std::int64_t ld, std::int64_t cols,
                                     std::int64_t first_col, const std::int32_t* targets,
                                     const float* partial, int splits, float* state) {
  const std::int64_t r = blockIdx.x;
  SoftmaxState s = EmptySoftmax();
  for (int i = static_cast<int>(threadIdx.x); i < splits; i += static_cast<int>(blockDim.x)) {
    const float* p = partial + (r * splits + i) * 2;
    s = MergeSoftmax(s, {p[0], p[1]});
  }
  s = WarpSoftmax(s);
  if (threadIdx.x != 0) return;
  float* to = state + r * 3;
  float target = BitsFloat(0x7fc00000u);  // NaN until its column comes
  if (first_col != 0) {
    s = MergeSoftmax({to[0], to[1]}, s);
    target = to[2];
  }
  const std::int64_t col = targets[r] - first_col;
  if (col >= 0 && col < cols) target = logits[r * ld + col];
  to[0] = s.max;
  to[1] = s.sum;
  to[2] = target;
}

__global__ void SurprisalFinishKernel(const float* state, std::int64_t n, float* surprisal,
                                      float* lse) {
  const std::int64_t step = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  for (std::int64_t r = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; r < n;
       r += step) {
    const float total = LogSumExpOf({state[r * 3], state[r * 3 + 1]});
    surprisal[r] = total - state[r * 3 + 2];
    if (lse != nullptr) lse[r] = total;
  }
}

constexpr std::int64_t kMaxGridRows = 65535;  // a grid's second dimension

unsigned RowsFrom(std::int64_t done, std::int64_t n) {
  return static_cast<unsigned>(n - done < kMaxGridRows ? n - done : kMaxGridRows);
}

LaunchSizes SplitSizes(const ReducePlan& plan, unsigned rows) {
  return {dim3(static_cast<unsigned>(plan.splits), rows), static_cast<unsigned>(plan.threads), 0};
}

}  // namespace

LaunchStatus ArgMax(const float* x, std::int64_t ldx, std::int64_t n, std::int64_t d,
                    const ReducePlan& plan, float* workspace, std::int32_t* tokens, Stream stream) {
  LaunchStatus status;
  for (std::int64_t done = 0; done < n && status.ok(); done += kMaxGridRows) {
    float* partial = workspace + done * plan.splits * 2;
    status = Launch("arg_max", ArgMaxKernel, SplitSizes(plan, RowsFrom(done, n)), stream,
                    x + done * ldx, ldx, d, plan.cols_per_split, partial);
  }
  if (!status.ok()) return status;
  // Without columns there are no splits, and the answer is -1.
  return Launch("arg_max_merge", ArgMaxMergeKernel,
                {dim3(static_cast<unsigned>(n)), kMergeThreads, 0}, stream, workspace, plan.splits,
                tokens);
}

LaunchStatus SurprisalChunk(const float* logits, std::int64_t ld, std::int64_t n, std::int64_t cols,
                            std::int64_t first_col, const std::int32_t* targets,
                            const ReducePlan& plan, float* workspace, float* state, Stream stream) {
  LaunchStatus status;
  for (std::int64_t done = 0; done < n && status.ok(); done += kMaxGridRows) {
    float* partial = workspace + done * plan.splits * 2;
    status = Launch("surprisal_chunk", SoftmaxKernel, SplitSizes(plan, RowsFrom(done, n)), stream,
                    logits + done * ld, ld, cols, plan.cols_per_split, partial);
  }
  if (!status.ok()) return status;
  return Launch("surprisal_merge", SurprisalMergeKernel,
                {dim3(static_cast<unsigned>(n)), kMergeThreads, 0}, stream, logits, ld, cols,
                first_col, targets, workspace, plan.splits, state);
}

LaunchStatus SurprisalFinish(const float* state, std::int64_t n, float* surprisal, float* lse,
                             Stream stream) {
  constexpr unsigned kThreads = 128;
  return Launch("surprisal_finish", SurprisalFinishKernel, ItemSizes(n, kThreads), stream, state, n,
                surprisal, lse);
}

}  // namespace baton::cuda
