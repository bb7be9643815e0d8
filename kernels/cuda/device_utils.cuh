// Device helpers shared by the .cu files. Internal to the room.
#pragma once

#include <cuda_fp16.h>

#include <cstddef>
#include <cstdint>

#include "kernels/convert_math.h"
#include "kernels/dtype.h"

namespace baton::cuda {

inline constexpr unsigned kFullWarp = 0xffffffffu;

__device__ __forceinline__ float WarpSum(float x) {
  for (int step = 16; step > 0; step >>= 1) x += __shfl_xor_sync(kFullWarp, x, step);
  return x;
}
__device__ __forceinline__ float WarpMax(float x) {
  for (int step = 16; step > 0; step >>= 1) x = fmaxf(x, __shfl_xor_sync(kFullWarp, x, step));
  return x;
}

template <DType D>
__device__ __forceinline__ float LoadElement(const std::byte* base, int i) {
  if constexpr (D == DType::kF32) {
    return reinterpret_cast<const float*>(base)[i];
  } else if constexpr (D == DType::kBF16) {
    return Bf16ToFloat(reinterpret_cast<const std::uint16_t*>(base)[i]);
  } else {
    return __half2float(reinterpret_cast<const __half*>(base)[i]);
  }
}

template <DType D>
__device__ __forceinline__ void StoreElement(std::byte* base, int i, float x) {
  if constexpr (D == DType::kF32) {
    reinterpret_cast<float*>(base)[i] = x;
  } else if constexpr (D == DType::kBF16) {
    reinterpret_cast<std::uint16_t*>(base)[i] = FloatToBf16(x);
  } else {
    reinterpret_cast<__half*>(base)[i] = __float2half_rn(x);
  }
}

}  // namespace baton::cuda
