// int8 and int4 codes in blocks of 32 values that share a scale: the arithmetic per element, shared
// by GGUF's blocks (quantize.h), planar codes (codes.h) and CUDA. C++17.
//
// The rules are ggml's for Q8_0 and Q4_1:
//   int8: d = max|x| / 127,          q = round(x / d) in [-127, 127],           x' = q * d
//   int4: d = (max - min) / 15, m = min,  q = floor((x - m) / d + 0.5) in [0, 15],  x' = q * d + m
// q is computed with the unrounded d; d and m are stored as fp16. A NaN gets the least code.
#pragma once

#include <cstdint>

#include "kernels/convert_math.h"
#include "kernels/exp_math.h"
#include "kernels/hd.h"

namespace baton {

inline constexpr int kCodeBlock = 32;

enum class CodeType : std::uint8_t { kInt8 = 0, kInt4 = 1 };

// Bytes of codes and fp16 values of scales of one block.
BATON_HD constexpr int CodeBlockBytes(CodeType t) { return t == CodeType::kInt8 ? 32 : 16; }
BATON_HD constexpr int CodeBlockScales(CodeType t) { return t == CodeType::kInt8 ? 1 : 2; }

constexpr const char* CodeTypeName(CodeType t) { return t == CodeType::kInt8 ? "int8" : "int4"; }

BATON_HD float InverseScale(float d) { return d != 0.0f ? 1.0f / d : 0.0f; }

BATON_HD float Int8Scale(float max_abs) { return max_abs / 127.0f; }
// Halves away from zero, as ggml rounds. The limits only act where 1 / d overflows.
BATON_HD int Int8Code(float x, float inverse) {
  const float t = MinT(MaxT(x * inverse, -127.0f), 127.0f);
  const int whole = static_cast<int>(t);
  // Exact, where t + 0.5 is not: 0.49999997 + 0.5 rounds to 1.
  const float rest = t - static_cast<float>(whole);
  return whole + (rest >= 0.5f ? 1 : 0) - (rest <= -0.5f ? 1 : 0);
}

BATON_HD float Int4Scale(float min, float max) { return (max - min) / 15.0f; }
BATON_HD int Int4Code(float x, float min, float inverse) {
  return static_cast<int>(MinT(MaxT((x - min) * inverse + 0.5f, 0.0f), 15.0f));
}

// An unsigned byte as fp32 without the slow conversion: 2^23 + b has b in its lowest bits.
BATON_HD float ByteFloat(std::uint32_t b) { return BitsFloat(0x4b000000u | b) - 8388608.0f; }
// Byte i of a word of four int8 codes.
BATON_HD float Int8Float(std::uint32_t word, int i) {
  return BitsFloat(0x4b000000u | (((word ^ 0x80808080u) >> (8 * i)) & 0xffu)) - 8388736.0f;
}
BATON_HD float Int4Float(std::uint32_t word, int nibble) {
  return ByteFloat((word >> (4 * nibble)) & 0xfu);
}

BATON_HD float DecodeInt8(float q, float d) { return q * d; }
BATON_HD float DecodeInt4(float q, float d, float m) { return q * d + m; }

}  // namespace baton
