#include "common/weights/dequantize.h"

#include <immintrin.h>

#include <cstring>

#include "common/base/strings.h"
#include "kernels/convert_math.h"

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

// This file is compiled without contraction to fused multiply-adds (CMakeLists.txt): d * q + m is
// rounded twice, as in ggml.
void FromQ4_1(const std::byte* src, float* dst, int64_t n) {
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

// The five-bit numbers of a Q5_0 or Q5_1 block, in element order.
template <typename Block>
void FiveBits(const Block& block, int q[kQuantBlock]) {
  constexpr int kHalf = kQuantBlock / 2;
  for (int k = 0; k < kQuantBlock; ++k) {
    const int nibble = k < kHalf ? block.qs[k] & 0xF : block.qs[k - kHalf] >> 4;
    q[k] = nibble | (block.qh[k / 8] >> (k % 8) & 1) << 4;
  }
}

void FromQ5_0(const std::byte* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; i += kQuantBlock, src += sizeof(BlockQ5_0), dst += kQuantBlock) {
    const auto block = Load<BlockQ5_0>(src);
    const float d = HalfToFloat(block.d);
    int q[kQuantBlock];
    FiveBits(block, q);
    for (int k = 0; k < kQuantBlock; ++k) dst[k] = d * static_cast<float>(q[k] - 16);
  }
}

void FromQ5_1(const std::byte* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; i += kQuantBlock, src += sizeof(BlockQ5_1), dst += kQuantBlock) {
    const auto block = Load<BlockQ5_1>(src);
    const float d = HalfToFloat(block.d);
    const float m = HalfToFloat(block.m);
    int q[kQuantBlock];
    FiveBits(block, q);
    for (int k = 0; k < kQuantBlock; ++k) dst[k] = d * static_cast<float>(q[k]) + m;
  }
}

constexpr int kGroup = 32;  // elements of a group in Q4_K and Q5_K

struct ScaleAndMin {
  float scale;
  float min;
};

// Of group `g` in Q4_K and Q5_K.
template <typename Block>
ScaleAndMin GroupScale(const Block& block, int g) {
  const uint8_t* s = block.scales;
  const int scale = g < 4 ? s[g] & 63 : (s[g + 4] & 0xF) | (s[g - 4] >> 6) << 4;
  const int min = g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | (s[g] >> 6) << 4;
  return {HalfToFloat(block.d) * static_cast<float>(scale),
          HalfToFloat(block.dmin) * static_cast<float>(min)};
}

void FromQ4_K(const std::byte* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; i += kSuperBlock, src += sizeof(BlockQ4_K)) {
    const auto block = Load<BlockQ4_K>(src);
    for (int g = 0; g < kSuperBlock / kGroup; ++g, dst += kGroup) {
      const ScaleAndMin s = GroupScale(block, g);
      const uint8_t* qs = block.qs + g / 2 * kGroup;
      for (int k = 0; k < kGroup; ++k) {
        const int q = qs[k] >> (g % 2 * 4) & 0xF;
        dst[k] = s.scale * static_cast<float>(q) - s.min;
      }
    }
  }
}

void FromQ5_K(const std::byte* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; i += kSuperBlock, src += sizeof(BlockQ5_K)) {
    const auto block = Load<BlockQ5_K>(src);
    for (int g = 0; g < kSuperBlock / kGroup; ++g, dst += kGroup) {
      const ScaleAndMin s = GroupScale(block, g);
      const uint8_t* qs = block.qs + g / 2 * kGroup;
      for (int k = 0; k < kGroup; ++k) {
        const int q = (qs[k] >> (g % 2 * 4) & 0xF) | (block.qh[k] >> g & 1) << 4;
        dst[k] = s.scale * static_cast<float>(q) - s.min;
      }
    }
  }
}

void FromQ6_K(const std::byte* src, float* dst, int64_t n) {
  for (int64_t i = 0; i < n; i += kSuperBlock, src += sizeof(BlockQ6_K), dst += kSuperBlock) {
    const auto block = Load<BlockQ6_K>(src);
    const float d = HalfToFloat(block.d);
    for (int k = 0; k < kSuperBlock; ++k) {
      const int half = k / 128, j = k % 128 / 32, at = k % 32, group = k / 16;
      const int low = block.ql[64 * half + at + 32 * (j % 2)] >> (j / 2 * 4) & 0xF;
      const int high = block.qh[32 * half + at] >> (2 * j) & 3;
      const float scale = d * static_cast<float>(block.scales[group]);
      dst[k] = scale * static_cast<float>((low | high << 4) - 32);
    }
  }
}

using BlockReader = void (*)(const std::byte*, float*, int64_t);

// Null for a type that is not block-quantised or cannot be read.
BlockReader ReaderOf(StoredDType dtype) {
  switch (dtype) {
    case StoredDType::kQ8_0:
      return FromQ8_0;
    case StoredDType::kQ4_0:
      return FromQ4_0;
    case StoredDType::kQ4_1:
      return FromQ4_1;
    case StoredDType::kQ5_0:
      return FromQ5_0;
    case StoredDType::kQ5_1:
      return FromQ5_1;
    case StoredDType::kQ4_K:
      return FromQ4_K;
    case StoredDType::kQ5_K:
      return FromQ5_K;
    case StoredDType::kQ6_K:
      return FromQ6_K;
    default:
      return nullptr;
  }
}

}  // namespace

bool IsDequantizable(StoredDType dtype) {
  return dtype == StoredDType::kF32 || dtype == StoredDType::kF16 || dtype == StoredDType::kBF16 ||
         ReaderOf(dtype) != nullptr;
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
      for (int64_t i = 0; i < n; ++i) dst[i] = Bf16ToFloat(Load<uint16_t>(src + 2 * i));
      return absl::OkStatus();
    default:
      break;
  }
  const BlockReader reader = ReaderOf(dtype);
  if (reader == nullptr) {
    return absl::UnimplementedError(Cat("weights of type ", DTypeName(dtype),
                                        " are not supported (", kDequantizableTypes, " are)"));
  }
  reader(src, dst, n);
  return absl::OkStatus();
}

}  // namespace baton
