// Column sums of the attention matrix: a block keeps one tile of keys and walks over all queries,
// so that every sum has one owner and one order.
#include <cuda_runtime.h>

#include "kernels/cuda/attention_common.cuh"

namespace baton::cuda {
namespace {

constexpr unsigned kThreads = 256;

// Where a block's tile of keys lies: segment, first row, and the row's place in `mass`.
struct TilePlace {
  int segment = -1;  // none: the head has fewer tiles than the grid
  int begin = 0;
  std::int64_t mass = 0;
};

__device__ TilePlace FindTile(const AttentionTask& task, int head, int tile, int keys) {
  TilePlace place;
  // A task of a batch has its segments in the middle of a list.
  for (int i = task.segment_offsets[0]; i < task.segment_offsets[head]; ++i) {
    place.mass += task.segments[i].num_rows;
  }
  for (int i = task.segment_offsets[head]; i < task.segment_offsets[head + 1]; ++i) {
    const int rows = task.segments[i].num_rows, tiles = (rows + keys - 1) / keys;
    if (tile < tiles) {
      place.segment = i;
      place.begin = tile * keys;
      place.mass += place.begin;
      return place;
    }
    tile -= tiles;
    place.mass += rows;
  }
  return place;
}

// Grid: (tiles, kv_heads).
template <int kKeys>
__global__ void KeyMassKernel(AttentionShape shape, KvPageLayout layout, AttentionTask task,
                              float* mass) {
  using Tile = KeyTile<kKeys>;
  constexpr int kRows = Tile::kRows, kPages = Tile::kPages;
  const int hd = layout.head_dim;
  const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
  const int h = static_cast<int>(blockIdx.y);
  const int group = shape.q_heads / shape.kv_heads;
  const TilePlace place = FindTile(task, h, static_cast<int>(blockIdx.x), kKeys);
  if (place.segment < 0) return;  // the same in all threads
  const KvSegment seg = task.segments[place.segment];
  const int left = seg.num_rows - place.begin, valid = left < kKeys ? left : kKeys;
  float* q = DynamicShared();    // [kKeys][hd]
  float* k = q + kKeys * hd;     // [hd][kKeys]
  float* sums = k + kKeys * hd;  // [16][kKeys]
  Tile::LoadKeys(layout, seg, place.begin, k);
  float total[kPages];
#pragma unroll
  for (int j = 0; j < kPages; ++j) total[j] = 0.0f;
  const std::int64_t rows = static_cast<std::int64_t>(task.num_q) * group;
  for (std::int64_t first = 0; first < rows; first += kKeys) {
    // Queries that see none of these keys: a thread looks at one row.
    const std::int64_t mine = first + threadIdx.x;
    bool sees = false;
    if (threadIdx.x < kKeys && mine < rows) {
      const std::int32_t position = task.q_positions[mine / group];
      sees = RowsVisible(shape, seg, place.begin, place.begin + valid, position, position);
    }
    // Also keeps the rows before from being overwritten while they are read.
    if (__syncthreads_or(sees ? 1 : 0) == 0) continue;
    for (int i = static_cast<int>(threadIdx.x); i < kKeys * hd; i += static_cast<int>(kThreads)) {
      const std::int64_t row = first + i / hd;
      q[i] = row < rows ? task.q[row / group * task.ldq + (h * group + row % group) * hd + i % hd]
                        : 0.0f;
    }
    __syncthreads();
    float s[kRows][kPages];
    Tile::Scores(hd, q, k, s);
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const std::int64_t row = first + ty + 16 * i;
      if (row >= rows) continue;
      const float lse = task.lse[row / group * shape.q_heads + h * group + row % group];
      // A query that saw nothing gives no mass.
      if (lse == -__builtin_inff()) continue;
      Tile::Mask(shape, seg, place.begin, task.q_positions[row / group], s[i]);
#pragma unroll
      for (int j = 0; j < kPages; ++j) total[j] += ExpT(s[i][j] - lse);
    }
  }
#pragma unroll
  for (int j = 0; j < kPages; ++j) sums[ty * kKeys + tx + 16 * j] = total[j];
  __syncthreads();
  const int key = static_cast<int>(threadIdx.x);
  if (key >= valid) return;
  float sum = 0.0f;
  for (int i = 0; i < 16; ++i) sum += sums[i * kKeys + key];
  mass[place.mass + key] = sum;
}

}  // namespace

LaunchStatus KeyMass(const AttentionShape& shape, const KvPageLayout& layout,
                     const KeyMassPlan& plan, const AttentionTask& task, float* mass,
                     Stream stream) {
  auto* kernel = plan.keys == 64 ? KeyMassKernel<64> : KeyMassKernel<32>;
  return Launch("key_mass", kernel,
                {dim3(static_cast<unsigned>(plan.tiles), static_cast<unsigned>(shape.kv_heads)),
                 kThreads, plan.shared_bytes},
                stream, shape, layout, task, mass);
}

}  // namespace baton::cuda
