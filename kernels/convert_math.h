// fp32 <-> bf16 and fp16 bits, rounded to nearest even. C++17, host and device.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/hd.h"

namespace baton {

BATON_HD std::uint32_t FloatBits(float f) {
  std::uint32_t u;
  memcpy(&u, &f, 4);
  return u;
}

BATON_HD float BitsFloat(std::uint32_t u) {
  float f;
  memcpy(&f, &u, 4);
  return f;
}

BATON_HD float Bf16ToFloat(std::uint16_t h) {
  return BitsFloat(static_cast<std::uint32_t>(h) << 16);
}

// NaN stays a (quiet) NaN; overflow goes to infinity.
BATON_HD std::uint16_t FloatToBf16(float f) {
  const std::uint32_t u = FloatBits(f);
  const std::uint32_t rounded = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16;
  const std::uint32_t nan = (u >> 16) | 0x40u;
  return static_cast<std::uint16_t>((u & 0x7fffffffu) > 0x7f800000u ? nan : rounded);
}

BATON_HD float HalfToFloat(std::uint16_t h) {
  const std::uint32_t sign = static_cast<std::uint32_t>(h & 0x8000u) << 16;
  const std::uint32_t body = static_cast<std::uint32_t>(h & 0x7fffu) << 13;
  if (body >= 0x0f800000u) {
    // A signalling NaN becomes quiet, as the hardware's conversion does.
    const std::uint32_t quiet = body > 0x0f800000u ? 0x00400000u : 0u;
    return BitsFloat(sign | (body + 0x70000000u) | quiet);
  }
  // 2^112 moves the exponent's bias from 15 to 127, subnormals included.
  const float magnitude = BitsFloat(body) * BitsFloat(0x77800000u);
  return BitsFloat(sign | FloatBits(magnitude));
}

// NaN stays a (quiet) NaN; values of 65520 and more become infinity.
BATON_HD std::uint16_t FloatToHalf(float f) {
  const std::uint32_t u = FloatBits(f);
  const std::uint32_t sign = (u >> 16) & 0x8000u;
  const std::uint32_t mag = u & 0x7fffffffu;
  if (mag > 0x7f800000u) return static_cast<std::uint16_t>(sign | 0x7e00u | ((mag >> 13) & 0x3ffu));
  if (mag >= 0x477ff000u) return static_cast<std::uint16_t>(sign | 0x7c00u);
  if (mag < 0x38800000u) {
    // Subnormal: adding 0.5 lets the fp32 adder do the rounding.
    const float shifted = BitsFloat(mag) + 0.5f;
    return static_cast<std::uint16_t>(sign | (FloatBits(shifted) - 0x3f000000u));
  }
  const std::uint32_t rounded = mag + 0xc8000fffu + ((mag >> 13) & 1u);
  return static_cast<std::uint16_t>(sign | (rounded >> 13));
}

}  // namespace baton
