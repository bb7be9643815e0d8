#include <cuda_runtime.h>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/cuda/device_utils.cuh"
#include "kernels/cuda/launch.cuh"

namespace baton::cuda {
namespace {

// kWide: rows of the table and of y are aligned for eight elements at a time.
template <DType D, bool kWide>
__global__ void EmbeddingKernel(const void* table, std::int64_t vocab, std::int64_t d,
                                const std::int32_t* ids, std::int64_t n, float* y,
                                std::int64_t ldy) {
  constexpr int kAtOnce = kWide ? 8 : 1;
  for (std::int64_t r = blockIdx.x; r < n; r += gridDim.x) {
    const std::int64_t id = ids[r];
    const bool known = id >= 0 && id < vocab;
    for (std::int64_t i = threadIdx.x; i < d / kAtOnce; i += blockDim.x) {
      float x[kAtOnce];
      if (!known) {
        for (int j = 0; j < kAtOnce; ++j) x[j] = BitsFloat(0x7fc00000u);
      } else if constexpr (kWide) {
        LoadEight<D>(table, id * d + i * 8, x);
      } else {
        x[0] = LoadElement<D>(table, id * d + i);
      }
      float* to = y + r * ldy + i * kAtOnce;
      if constexpr (kWide) {
        reinterpret_cast<float4*>(to)[0] = make_float4(x[0], x[1], x[2], x[3]);
        reinterpret_cast<float4*>(to)[1] = make_float4(x[4], x[5], x[6], x[7]);
      } else {
        to[0] = x[0];
      }
    }
  }
}

}  // namespace

LaunchStatus EmbeddingRows(const void* table, DType dtype, std::int64_t vocab, std::int64_t d,
                           const std::int32_t* ids, std::int64_t n, float* y, std::int64_t ldy,
                           Stream stream) {
  const bool wide = d % 8 == 0 && Aligned16(table, 0) && Aligned16(y, ldy);
  auto* kernel =
      dtype == DType::kF32
          ? (wide ? EmbeddingKernel<DType::kF32, true> : EmbeddingKernel<DType::kF32, false>)
      : dtype == DType::kBF16
          ? (wide ? EmbeddingKernel<DType::kBF16, true> : EmbeddingKernel<DType::kBF16, false>)
          : (wide ? EmbeddingKernel<DType::kF16, true> : EmbeddingKernel<DType::kF16, false>);
  return Launch("embedding_rows", kernel, RowSizes(PlanRows(n, wide ? d / 8 : d, kMaxBlocks)),
                stream, table, vocab, d, ids, n, y, ldy);
}

}  // namespace baton::cuda
