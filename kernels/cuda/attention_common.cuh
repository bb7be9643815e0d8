// What the attention kernels share. Internal to the room.
#pragma once

#include "kernels/attention.h"
#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device_utils.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/softmax_math.h"

namespace baton::cuda {

LaunchStatus AttentionSplit(const AttentionShape& shape, const KvPageLayout& layout,
                            const AttentionPlan& plan, const AttentionArgs& args, Stream stream);
LaunchStatus AttentionTiled(const AttentionShape& shape, const KvPageLayout& layout,
                            const AttentionPlan& plan, const AttentionArgs& args, Stream stream);

__device__ __forceinline__ bool KeyVisible(const AttentionShape& shape, std::int32_t q_position,
                                           std::int32_t key_position) {
  const std::int32_t ahead = q_position - key_position;
  return ahead >= 0 && (shape.window <= 0 || ahead < shape.window);
}

// exp(x - max) where max may be -inf (nothing seen so far, x = -inf too).
__device__ __forceinline__ float ExpBelow(float x, float max) {
  return max == -__builtin_inff() ? 0.0f : ExpT(x - max);
}

// Whether a query with a position in [q_min, q_max] may see a key among rows [begin, end) of a
// segment. Reads two positions of a sorted segment, of others none.
__device__ __forceinline__ bool RowsVisible(const AttentionShape& shape, const KvSegment& seg,
                                            int begin, int end, std::int32_t q_min,
                                            std::int32_t q_max) {
  if (!seg.sorted) return true;
  const int last = end - 1;
  return PagePositions(seg.pages[begin / kPageRows])[begin % kPageRows] <= q_max &&
         (shape.window <= 0 ||
          PagePositions(seg.pages[last / kPageRows])[last % kPageRows] > q_min - shape.window);
}

// Eight elements of a page. The dtype is asked for at run time: the tiles' time goes into their
// products, and a third of the kernels compiles in a third of the time.
__device__ __forceinline__ void LoadPageEight(DType dtype, const std::byte* base, int i,
                                              float (&x)[8]) {
  if (dtype == DType::kF32) {
    LoadEight<DType::kF32>(base, i, x);
  } else if (dtype == DType::kBF16) {
    LoadEight<DType::kBF16>(base, i, x);
  } else {
    LoadEight<DType::kF16>(base, i, x);
  }
}

// A tile of kKeys keys of a segment for 16 x 16 threads: pages to shared memory, and scores.
template <int kKeys>
struct KeyTile {
  static constexpr int kPages = kKeys / kPageRows;
  static constexpr int kRows = kKeys / 16;  // query rows of a thread

  // k [head_dim][kKeys] from the pages' [head_dim][16]; absent pages are zeros.
  static __device__ void LoadKeys(const KvPageLayout& layout, const KvSegment& seg, int begin,
                                  float* k) {
    const int octets = layout.head_dim * kPages * 2;
    for (int i = static_cast<int>(threadIdx.x); i < octets; i += static_cast<int>(blockDim.x)) {
      const int p = i / (layout.head_dim * 2), at = i % (layout.head_dim * 2);
      float x[8] = {};
      if (begin + p * kPageRows < seg.num_rows) {
        LoadPageEight(layout.dtype, seg.pages[begin / kPageRows + p] + layout.k_offset(), at * 8,
                      x);
      }
      float* to = k + at / 2 * kKeys + p * kPageRows + at % 2 * 8;
#pragma unroll
      for (int j = 0; j < 8; ++j) to[j] = x[j];
    }
  }

  // v [kKeys][head_dim]; rows that are not valid are zeros, as their probability is.
  static __device__ void LoadValues(const KvPageLayout& layout, const KvSegment& seg, int begin,
                                    float* v) {
    const int row_octets = layout.head_dim / 8;
    for (int i = static_cast<int>(threadIdx.x); i < kKeys * row_octets;
         i += static_cast<int>(blockDim.x)) {
      const int row = i / row_octets, at = i % row_octets * 8;
      float x[8] = {};
      if (begin + row < seg.num_rows) {
        LoadPageEight(layout.dtype, seg.pages[(begin + row) / kPageRows] + layout.v_offset(),
                      row % kPageRows * layout.head_dim + at, x);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) v[row * layout.head_dim + at + j] = x[j];
    }
  }

  // s[i][j] = q of row ty + 16 i . k of key tx + 16 j; q [kKeys][head_dim].
  static __device__ void Scores(int head_dim, const float* q, const float* k,
                                float (&s)[kRows][kPages]) {
    const int tx = static_cast<int>(threadIdx.x) % 16, ty = static_cast<int>(threadIdx.x) / 16;
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
#pragma unroll
      for (int j = 0; j < kPages; ++j) s[i][j] = 0.0f;
    }
    for (int d = 0; d < head_dim; ++d) {
      float key[kPages];
#pragma unroll
      for (int j = 0; j < kPages; ++j) key[j] = k[d * kKeys + tx + 16 * j];
#pragma unroll
      for (int i = 0; i < kRows; ++i) {
        const float x = q[(ty + 16 * i) * head_dim + d];
#pragma unroll
        for (int j = 0; j < kPages; ++j) s[i][j] = fmaf(x, key[j], s[i][j]);
      }
    }
  }

  // Scales, biases and masks the scores of one query row in place; hidden keys become -inf.
  static __device__ void Mask(const AttentionShape& shape, const KvSegment& seg, int begin,
                              std::int32_t q_position, float (&s)[kPages]) {
    const int tx = static_cast<int>(threadIdx.x) % 16;
#pragma unroll
    for (int j = 0; j < kPages; ++j) {
      const int row = begin + tx + 16 * j;
      float x = -__builtin_inff();
      if (row < seg.num_rows &&
          KeyVisible(shape, q_position, PagePositions(seg.pages[row / kPageRows])[tx])) {
        x = s[j] * shape.scale;
        if (seg.bias != nullptr) x = x + seg.bias[row];
      }
      s[j] = x;
    }
  }
};

}  // namespace baton::cuda
