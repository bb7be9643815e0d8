#include <cuda_runtime.h>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device_utils.cuh"
#include "kernels/exp_math.h"

namespace baton::cuda {
namespace {

template <DType D>
__global__ void WriteKernel(KvPageLayout layout, KvWriteArgs a) {
  const std::int64_t r = blockIdx.x;
  const int h = static_cast<int>(blockIdx.y);
  const int row = a.rows[r];
  std::byte* page = a.pages[r * a.kv_heads + h];
  if (threadIdx.x == 0) PagePositions(page)[row] = a.positions[r];
  const float* k = a.k + r * a.ldk + static_cast<std::int64_t>(h) * layout.head_dim;
  const float* v = a.v + r * a.ldv + static_cast<std::int64_t>(h) * layout.head_dim;
  for (int d = static_cast<int>(threadIdx.x); d < layout.head_dim;
       d += static_cast<int>(blockDim.x)) {
    StoreElement<D>(page + layout.k_offset(), d * kPageRows + row, k[d]);
    StoreElement<D>(page + layout.v_offset(), row * layout.head_dim + d, v[d]);
  }
}

constexpr int kHeadsAtOnce = 4;  // query heads that share one reading of a page's keys

// Shared memory of one block, `group` query heads wide.
struct DecodeShared {
  float* q;    // [group][head_dim]
  float* o;    // [warps][group][head_dim]
  float* max;  // [warps][group]
  float* sum;  // [warps][group]
  float* p;    // [warps][group][16]
};

// One warp folds one page into its state. Lane = key + 16 * half of head_dim.
template <DType D>
__device__ void FoldPage(const AttentionShape& shape, const KvPageLayout& layout,
                         const std::byte* page, int rows, const float* bias, int q_position,
                         int group, const float* q, float* o, float* max, float* sum, float* p) {
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int key = lane % kPageRows;
  const int half = layout.head_dim / 2;
  const int d0 = lane / kPageRows * half;
  const std::byte* k = page + layout.k_offset();
  bool visible = key < rows;
  if (visible) {
    const int ahead = q_position - PagePositions(page)[key];
    visible = ahead >= 0 && (shape.window <= 0 || ahead < shape.window);
  }
  const float shift = visible && bias != nullptr ? bias[key] : 0.0f;
  for (int g0 = 0; g0 < group; g0 += kHeadsAtOnce) {
    float dot[kHeadsAtOnce] = {};
    for (int d = d0; d < d0 + half; ++d) {
      const float x = LoadElement<D>(k, d * kPageRows + key);
#pragma unroll
      for (int g = 0; g < kHeadsAtOnce; ++g) {
        if (g0 + g < group) dot[g] = fmaf(q[(g0 + g) * layout.head_dim + d], x, dot[g]);
      }
    }
#pragma unroll
    for (int g = 0; g < kHeadsAtOnce; ++g) {
      if (g0 + g >= group) break;
      const float total = dot[g] + __shfl_xor_sync(kFullWarp, dot[g], kPageRows);
      const float score = visible ? total * shape.scale + shift : -INFINITY;
      const float old = max[g0 + g];
      const float m = fmaxf(old, WarpMax(score));
      const float e = m == -INFINITY ? 0.0f : ExpT(score - m);
      const float alpha = m == -INFINITY ? 1.0f : ExpT(old - m);
      // Both halves of the warp hold every key.
      const float page_sum = WarpSum(lane < kPageRows ? e : 0.0f);
      if (lane < kPageRows) p[(g0 + g) * kPageRows + key] = e;
      __syncwarp();
      if (lane == 0) {
        max[g0 + g] = m;
        sum[g0 + g] = sum[g0 + g] * alpha + page_sum;
      }
      float* og = o + (g0 + g) * layout.head_dim;
      for (int d = lane; d < layout.head_dim; d += 32) og[d] *= alpha;
      __syncwarp();
    }
  }
  const std::byte* v = page + layout.v_offset();
  for (int d = lane; d < layout.head_dim; d += 32) {
    for (int g0 = 0; g0 < group; g0 += kHeadsAtOnce) {
      float acc[kHeadsAtOnce];
#pragma unroll
      for (int g = 0; g < kHeadsAtOnce; ++g) {
        acc[g] = g0 + g < group ? o[(g0 + g) * layout.head_dim + d] : 0.0f;
      }
      for (int j = 0; j < rows; ++j) {
        const float x = LoadElement<D>(v, j * layout.head_dim + d);
#pragma unroll
        for (int g = 0; g < kHeadsAtOnce; ++g) {
          if (g0 + g < group) acc[g] = fmaf(p[(g0 + g) * kPageRows + j], x, acc[g]);
        }
      }
#pragma unroll
      for (int g = 0; g < kHeadsAtOnce; ++g) {
        if (g0 + g < group) o[(g0 + g) * layout.head_dim + d] = acc[g];
      }
    }
  }
  __syncwarp();
}

// The warps' states of one head merged; each partial: head_dim outputs, max, sum.
__device__ void WritePartial(const KvPageLayout& layout, const DecodeShared& s, int group,
                             int warps, float* workspace, int first_head, int splits, int split) {
  for (int g = 0; g < group; ++g) {
    float m = -INFINITY;
    for (int w = 0; w < warps; ++w) m = fmaxf(m, s.max[w * group + g]);
    float* out = workspace + (static_cast<std::int64_t>(first_head + g) * splits + split) *
                                 (layout.head_dim + 2);
    for (int d = static_cast<int>(threadIdx.x); d < layout.head_dim + 2;
         d += static_cast<int>(blockDim.x)) {
      float total = 0.0f;
      for (int w = 0; w < warps; ++w) {
        if (s.max[w * group + g] == -INFINITY) continue;
        const float scale = ExpT(s.max[w * group + g] - m);
        const float x =
            d < layout.head_dim ? s.o[(w * group + g) * layout.head_dim + d] : s.sum[w * group + g];
        total = fmaf(x, scale, total);
      }
      out[d] = d == layout.head_dim + 1 ? m : total;
    }
  }
}

template <DType D>
__global__ void DecodeKernel(AttentionShape shape, KvPageLayout layout, DecodePlan plan,
                             DecodeArgs a) {
  extern __shared__ float shared[];
  const int split = static_cast<int>(blockIdx.x);
  const int h = static_cast<int>(blockIdx.y);
  const int t = static_cast<int>(blockIdx.z);
  const int group = shape.q_heads / shape.kv_heads;
  const int warps = static_cast<int>(blockDim.x) / 32;
  const int warp = static_cast<int>(threadIdx.x) / 32;
  const int state = group * layout.head_dim;
  DecodeShared s;
  s.q = shared;
  s.o = s.q + state;
  s.max = s.o + warps * state;
  s.sum = s.max + warps * group;
  s.p = s.sum + warps * group;
  const float* q =
      a.q + (static_cast<std::int64_t>(t) * shape.q_heads + h * group) * layout.head_dim;
  for (int i = static_cast<int>(threadIdx.x); i < state; i += static_cast<int>(blockDim.x)) {
    s.q[i] = q[i];
  }
  for (int i = static_cast<int>(threadIdx.x); i < warps * state;
       i += static_cast<int>(blockDim.x)) {
    s.o[i] = 0.0f;
  }
  for (int i = static_cast<int>(threadIdx.x); i < warps * group;
       i += static_cast<int>(blockDim.x)) {
    s.max[i] = -INFINITY;
    s.sum[i] = 0.0f;
  }
  __syncthreads();
  const int begin = split * plan.pages_per_split, end = begin + plan.pages_per_split;
  int first = 0;  // index of the segment's first page among the head's pages
  const std::int32_t* offsets =
      a.segment_offsets + static_cast<std::int64_t>(t) * shape.kv_heads + h;
  for (int i = offsets[0]; i < offsets[1] && first < end; ++i) {
    const KvSegment seg = a.segments[i];
    const int pages = (seg.num_rows + kPageRows - 1) / kPageRows;
    const int from = begin > first ? begin - first : 0;
    const int to = end - first < pages ? end - first : pages;
    for (int page = from + warp; page < to; page += warps) {
      const int left = seg.num_rows - page * kPageRows;
      FoldPage<D>(shape, layout, seg.pages[page], left < kPageRows ? left : kPageRows,
                  seg.bias == nullptr ? nullptr : seg.bias + page * kPageRows, a.q_positions[t],
                  group, s.q, s.o + warp * state, s.max + warp * group, s.sum + warp * group,
                  s.p + warp * group * kPageRows);
    }
    first += pages;
  }
  __syncthreads();
  WritePartial(layout, s, group, warps, a.workspace, t * shape.q_heads + h * group, plan.splits,
               split);
}

// One block per (task, query head).
__global__ void MergeKernel(AttentionShape shape, int splits, DecodeArgs a) {
  const std::int64_t head = blockIdx.x;
  const int stride = shape.head_dim + 2;
  const float* part = a.workspace + head * splits * stride;
  float m = -INFINITY;
  for (int s = 0; s < splits; ++s) m = fmaxf(m, part[s * stride + shape.head_dim + 1]);
  float total = 0.0f;
  for (int s = 0; s < splits && m != -INFINITY; ++s) {
    total = fmaf(part[s * stride + shape.head_dim], ExpT(part[s * stride + shape.head_dim + 1] - m),
                 total);
  }
  const float inv = m == -INFINITY ? 0.0f : 1.0f / total;
  for (int d = static_cast<int>(threadIdx.x); d < shape.head_dim;
       d += static_cast<int>(blockDim.x)) {
    float o = 0.0f;
    for (int s = 0; s < splits && m != -INFINITY; ++s) {
      o = fmaf(part[s * stride + d], ExpT(part[s * stride + shape.head_dim + 1] - m), o);
    }
    a.out[head * shape.head_dim + d] = o * inv;
  }
  if (threadIdx.x == 0 && a.lse != nullptr) {
    a.lse[head] = m == -INFINITY ? -INFINITY : m + logf(total);
  }
}

template <DType D>
int LaunchDecode(const AttentionShape& shape, const KvPageLayout& layout, const DecodePlan& plan,
                 const DecodeArgs& args, Stream stream) {
  constexpr std::size_t kWithoutAsking = 48 * 1024;
  if (plan.shared_bytes > kWithoutAsking) {
    const cudaError_t error =
        cudaFuncSetAttribute(DecodeKernel<D>, cudaFuncAttributeMaxDynamicSharedMemorySize,
                             static_cast<int>(plan.shared_bytes));
    if (error != cudaSuccess) return error;
  }
  const dim3 grid(static_cast<unsigned>(plan.splits), static_cast<unsigned>(shape.kv_heads),
                  static_cast<unsigned>(args.tasks));
  DecodeKernel<D><<<grid, plan.threads, plan.shared_bytes, stream>>>(shape, layout, plan, args);
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) return error;
  MergeKernel<<<args.tasks * shape.q_heads, 64, 0, stream>>>(shape, plan.splits, args);
  return cudaGetLastError();
}

}  // namespace

int WriteKvRows(const KvPageLayout& layout, const KvWriteArgs& args, Stream stream) {
  if (args.n == 0) return cudaSuccess;
  const dim3 grid(static_cast<unsigned>(args.n), static_cast<unsigned>(args.kv_heads));
  constexpr int kThreads = 64;
  switch (layout.dtype) {
    case DType::kF32:
      WriteKernel<DType::kF32><<<grid, kThreads, 0, stream>>>(layout, args);
      break;
    case DType::kBF16:
      WriteKernel<DType::kBF16><<<grid, kThreads, 0, stream>>>(layout, args);
      break;
    case DType::kF16:
      WriteKernel<DType::kF16><<<grid, kThreads, 0, stream>>>(layout, args);
      break;
  }
  return cudaGetLastError();
}

int DecodeAttention(const AttentionShape& shape, const KvPageLayout& layout, const DecodePlan& plan,
                    const DecodeArgs& args, Stream stream) {
  if (args.tasks == 0) return cudaSuccess;
  switch (layout.dtype) {
    case DType::kF32:
      return LaunchDecode<DType::kF32>(shape, layout, plan, args, stream);
    case DType::kBF16:
      return LaunchDecode<DType::kBF16>(shape, layout, plan, args, stream);
    case DType::kF16:
      return LaunchDecode<DType::kF16>(shape, layout, plan, args, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace baton::cuda
