// Attention of many query rows (prefill): one block per tile of query rows and KV head walks over
// tiles of keys with an online softmax, everything in fp32. 16 x 16 threads; thread (tx, ty) owns
// query rows ty + 16 i, keys tx + 16 j and dimensions tx + 16 k.
#include <cuda_runtime.h>

#include "kernels/cuda/attention_common.cuh"

namespace baton::cuda {
namespace {

constexpr unsigned kThreads = 256;

// Largest and smallest over the 16 lanes of a thread row.
__device__ __forceinline__ float RowMax(float x) {
  for (int step = 8; step > 0; step >>= 1) x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, step));
  return x;
}
__device__ __forceinline__ float RowSum(float x) {
  for (int step = 8; step > 0; step >>= 1) x += __shfl_xor_sync(kFullWarp, x, step);
  return x;
}

// Grid: (tiles, kv_heads). kDims: dimensions of a thread, head_dim <= 16 * kDims.
template <int kKeys, int kDims>
__global__ void TiledKernel(AttentionShape shape, KvPageLayout layout, AttentionArgs a) {
  using Tile = KeyTile<kKeys>;
  constexpr int kRows = Tile::kRows, kPages = Tile::kPages;
  const int hd = layout.head_dim;
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
  const AttentionTile tile = a.tiles[blockIdx.x];
  const int h = static_cast<int>(blockIdx.y);
  const int group = shape.q_heads / shape.kv_heads;
  const int rows = (tile.q_end - tile.q_begin) * group;
  float* q = DynamicShared();  // [kKeys][hd]
  float* kv = q + kKeys * hd;  // keys [hd][kKeys], then values [kKeys][hd]
  float* p = kv + kKeys * hd;  // [kKeys][kKeys + 1]
  for (int i = static_cast<int>(threadIdx.x); i < kKeys * hd; i += static_cast<int>(kThreads)) {
    const int row = i / hd;
    q[i] = row < rows ? a.q[(tile.q_begin + row / group) * a.ldq +
                            static_cast<std::int64_t>(h * group + row % group) * hd + i % hd]
                      : 0.0f;
  }
  std::int32_t q_position[kRows];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    // Rows beyond the tile repeat its first query and are not written.
    const int row = ty + 16 * i;
    q_position[i] = a.q_positions[tile.q_begin + (row < rows ? row / group : 0)];
  }
  std::int32_t q_min = INT32_MAX, q_max = INT32_MIN;
  for (std::int32_t i = tile.q_begin; i < tile.q_end; ++i) {
    const std::int32_t position = a.q_positions[i];
    q_min = position < q_min ? position : q_min;
    q_max = position > q_max ? position : q_max;
  }
  float max[kRows], sum[kRows], o[kRows][kDims];
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    max[i] = -__builtin_inff();
    sum[i] = 0.0f;
#pragma unroll
    for (int c = 0; c < kDims; ++c) o[i][c] = 0.0f;
  }
  const std::int32_t* offsets =
      a.segment_offsets + static_cast<std::int64_t>(tile.task) * shape.kv_heads + h;
  for (int seg_index = offsets[0]; seg_index < offsets[1]; ++seg_index) {
    const KvSegment seg = a.segments[seg_index];
    for (int begin = 0; begin < seg.num_rows; begin += kKeys) {
      const int end = begin + kKeys < seg.num_rows ? begin + kKeys : seg.num_rows;
      // The same in all threads.
      if (!RowsVisible(shape, seg, begin, end, q_min, q_max)) continue;
      __syncthreads();  // the tile before has been used up
      Tile::LoadKeys(layout, seg, begin, kv);
      __syncthreads();
      float s[kRows][kPages];
      Tile::Scores(hd, q, kv, s);
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        Tile::Mask(shape, seg, begin, q_position[i], s[i]);
        float m = s[i][0];
#pragma unroll
        for (int j = 1; j < kPages; ++j) m = fmaxf(m, s[i][j]);
        m = fmaxf(max[i], RowMax(m));
        const float alpha = m == -__builtin_inff() ? 1.0f : ExpT(max[i] - m);
        max[i] = m;
        sum[i] *= alpha;
#pragma unroll
        for (int j = 0; j < kPages; ++j) {
          const float e = ExpBelow(s[i][j], m);
          sum[i] += e;  // this thread's keys; added up at the end
          p[(ty + 16 * i) * (kKeys + 1) + tx + 16 * j] = e;
        }
#pragma unroll
        for (int c = 0; c < kDims; ++c) o[i][c] *= alpha;
      }
      __syncthreads();  // keys are used up, probabilities are there
      Tile::LoadValues(layout, seg, begin, kv);
      __syncthreads();
      for (int key = 0; key < end - begin; ++key) {
        float e[kRows];
#pragma unroll
        for (int i = 0; i < kRows; ++i) e[i] = p[(ty + 16 * i) * (kKeys + 1) + key];
#pragma unroll
        for (int c = 0; c < kDims; ++c) {
          const int d = tx + 16 * c;
          const float v = d < hd ? kv[key * hd + d] : 0.0f;
#pragma unroll
          for (int i = 0; i < kRows; ++i) o[i][c] = fmaf(e[i], v, o[i][c]);
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < kRows; ++i) {
    const int row = ty + 16 * i;
    const SoftmaxState s = {max[i], RowSum(sum[i])};
    if (row >= rows) continue;
    const std::int64_t query = tile.q_begin + row / group;
    const int head = h * group + row % group;
    const float inv = s.max == -__builtin_inff() ? 0.0f : 1.0f / s.sum;
    float* out = a.out + query * a.ldo + static_cast<std::int64_t>(head) * hd;
#pragma unroll
    for (int c = 0; c < kDims; ++c) {
      if (tx + 16 * c < hd) out[tx + 16 * c] = o[i][c] * inv;
    }
    if (tx == 0 && a.lse != nullptr) a.lse[query * shape.q_heads + head] = LogSumExpOf(s);
  }
}

}  // namespace

LaunchStatus AttentionTiled(const AttentionShape& shape, const KvPageLayout& layout,
                            const AttentionPlan& plan, const AttentionArgs& args, Stream stream) {
  auto* kernel = plan.tile_rows == 64 ? TiledKernel<64, 8> : TiledKernel<32, 16>;
  AttentionArgs part = args;
  part.tiles = args.tiles + plan.split_tiles;
  return Launch(
      "attention_tiled", kernel,
      {dim3(static_cast<unsigned>(plan.tiled_tiles()), static_cast<unsigned>(shape.kv_heads)),
       kThreads, plan.tile_shared_bytes},
      stream, shape, layout, part);
}

LaunchStatus Attention(const AttentionShape& shape, const KvPageLayout& layout,
                       const AttentionPlan& plan, const AttentionArgs& args, Stream stream) {
  LaunchStatus status;
  if (plan.split_tiles > 0) status = AttentionSplit(shape, layout, plan, args, stream);
  if (status.ok() && plan.tiled_tiles() > 0) {
    status = AttentionTiled(shape, layout, plan, args, stream);
  }
  return status;
}

}  // namespace baton::cuda
