// Device helpers shared by the .cu files. Internal to the room.
//
// The .cu files also compile as plain C++ against the emulator of tests/kernels/cuda/emulator, so
// what has no meaning there stays in this file and in launch.cuh.
#pragma once

#include <cuda_runtime.h>

#if defined(__CUDACC__)
#include <cuda_fp16.h>
#endif

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

// Dynamic shared memory of the block.
__device__ __forceinline__ float* DynamicShared() {
#if defined(__CUDACC__)
  extern __shared__ float4 baton_dynamic_shared[];
  return reinterpret_cast<float*>(baton_dynamic_shared);
#else
  return emulator::DynamicShared();
#endif
}

__device__ __forceinline__ float HalfBitsToFloat(std::uint16_t h) {
#if defined(__CUDACC__)
  return __half2float(__ushort_as_half(h));
#else
  return HalfToFloat(h);
#endif
}
__device__ __forceinline__ std::uint16_t FloatToHalfBits(float x) {
#if defined(__CUDACC__)
  return __half_as_ushort(__float2half_rn(x));
#else
  return FloatToHalf(x);
#endif
}

template <DType D>
__device__ __forceinline__ float LoadElement(const void* base, std::int64_t i) {
  if constexpr (D == DType::kF32) {
    return static_cast<const float*>(base)[i];
  } else if constexpr (D == DType::kBF16) {
    return Bf16ToFloat(static_cast<const std::uint16_t*>(base)[i]);
  } else {
    return HalfBitsToFloat(static_cast<const std::uint16_t*>(base)[i]);
  }
}

template <DType D>
__device__ __forceinline__ void StoreElement(void* base, std::int64_t i, float x) {
  if constexpr (D == DType::kF32) {
    static_cast<float*>(base)[i] = x;
  } else if constexpr (D == DType::kBF16) {
    static_cast<std::uint16_t*>(base)[i] = FloatToBf16(x);
  } else {
    static_cast<std::uint16_t*>(base)[i] = FloatToHalfBits(x);
  }
}

template <DType D>
__device__ __forceinline__ float PairHalf(std::uint32_t word, int high) {
  if constexpr (D == DType::kBF16) {
    return BitsFloat(high != 0 ? word & 0xffff0000u : word << 16);
  } else {
    return HalfBitsToFloat(static_cast<std::uint16_t>(high != 0 ? word >> 16 : word));
  }
}

// Eight elements from element i on; the address is aligned to 8 elements.
template <DType D>
__device__ __forceinline__ void LoadEight(const void* base, std::int64_t i, float (&x)[8]) {
  if constexpr (D == DType::kF32) {
    const float4* p = reinterpret_cast<const float4*>(static_cast<const float*>(base) + i);
    const float4 a = p[0], b = p[1];
    x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w;
    x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
  } else {
    const uint4 w = *reinterpret_cast<const uint4*>(static_cast<const std::uint16_t*>(base) + i);
    x[0] = PairHalf<D>(w.x, 0), x[1] = PairHalf<D>(w.x, 1);
    x[2] = PairHalf<D>(w.y, 0), x[3] = PairHalf<D>(w.y, 1);
    x[4] = PairHalf<D>(w.z, 0), x[5] = PairHalf<D>(w.z, 1);
    x[6] = PairHalf<D>(w.w, 0), x[7] = PairHalf<D>(w.w, 1);
  }
}

inline bool Aligned16(const void* p, std::int64_t ld) {
  return reinterpret_cast<std::uintptr_t>(p) % 16 == 0 && ld % 4 == 0;
}

}  // namespace baton::cuda
