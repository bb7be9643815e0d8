#include "common/weights/dequantize.h"

#include <immintrin.h>

#include <bit>
#include <cstring>

#include "common/base/strings.h"

namespace baton {
namespace {

// The file may hold a block at any address.
template <typename T>
T Load(const std::byte* src) {
  T value;
  std::memcpy(&value, src, sizeof(T));
  return value;
}

void FromHalf(const std::byte* src, float* dst, int64_t n) {
  int64_t i = 0;
  for (; i + 8 <= n; i += 8) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(src + 2 * i));
    _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(half));
  }
  for (; i < n; ++i) dst[i] = HalfToFloat(Load<uint16_t>(src + 2 * i));
}

void FromQ8_0(const std::byte* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; i += kQuantBlock, src += sizeof(BlockQ8_0), dst += kQuantBlock) {
    const auto block = Load<BlockQ8_0>(src);
    const float d = HalfToFloat(block.d);
    for (int k = 0; k < kQuantBlock; ++k) dst[k] = d * static_cast<float>(block.qs[k]);
  }
}

void FromQ4_0(const std::byte* src, float* dst, int64_t n) {
  constexpr int kHalf = kQuantBlock / 2;
  for (int64_t i = 0; i < n; i += kQuantBlock, src += sizeof(BlockQ4_0), dst += kQuantBlock) {
    const auto block = Load<BlockQ4_0>(src);
    const float d = HalfToFloat(block.d);
    for (int k = 0; k < kHalf; ++k) {
      dst[k] = d * static_cast<float>((block.qs[k] & 0xF) - 8);
      dst[k + kHalf] = d * static_cast<float>((block.qs[k] >> 4) - 8);
    }
  }
}

// Not contracted to fused multiply-adds: the result is the one of two roundings, as in ggml.
__attribute__((optimize("fp-contract=off"))) void FromQ4_1(const std::byte* src, float* dst,
                                                           int64_t n) {
  constexpr int kHalf = kQuantBlock / 2;
  for (int64_t i = 0; i < n; i += kQuantBlock, src += sizeof(BlockQ4_1), dst += kQuantBlock) {
    const auto block = Load<BlockQ4_1>(src);
    const float d = HalfToFloat(block.d);
    const float m = HalfToFloat(block.m);
    for (int k = 0; k < kHalf; ++k) {
      dst[k] = d * static_cast<float>(block.qs[k] & 0xF) + m;
      dst[k + kHalf] = d * static_cast<float>(block.qs[k] >> 4) + m;
    }
  }
}

}  // namespace

float HalfToFloat(uint16_t half) { return _cvtsh_ss(half); }

float Bfloat16ToFloat(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

bool IsDequantizable(StoredDType dtype) {
  return dtype == StoredDType::kF32 || dtype == StoredDType::kF16 || dtype == StoredDType::kBF16 ||
         dtype == StoredDType::kQ8_0 || dtype == StoredDType::kQ4_0 || dtype == StoredDType::kQ4_1;
}

absl::Status DequantizeRow(StoredDType dtype, const std::byte* src, float* dst, int64_t n) {
  if (n < 0 || n % DTypeBlockElements(dtype) != 0) {
    return absl::InvalidArgumentError(
        Cat(n, " elements are not whole ", DTypeName(dtype), " blocks"));
  }
  switch (dtype) {
    case StoredDType::kF32:
      if (n > 0) std::memcpy(dst, src, static_cast<size_t>(n) * sizeof(float));
      return absl::OkStatus();
    case StoredDType::kF16:
      FromHalf(src, dst, n);
      return absl::OkStatus();
    case StoredDType::kBF16:
      for (int64_t i = 0; i < n; ++i) dst[i] = Bfloat16ToFloat(Load<uint16_t>(src + 2 * i));
      return absl::OkStatus();
    case StoredDType::kQ8_0:
      FromQ8_0(src, dst, n);
      return absl::OkStatus();
    case StoredDType::kQ4_0:
      FromQ4_0(src, dst, n);
      return absl::OkStatus();
    case StoredDType::kQ4_1:
      FromQ4_1(src, dst, n);
      return absl::OkStatus();
    default:
      return absl::UnimplementedError(
          Cat("weights of type ", DTypeName(dtype),
              " are not supported (F32, F16, BF16, Q8_0, Q4_0 and Q4_1 are)"));
  }
}

}  // namespace baton
