// Blocks of quantised weights as GGUF files store them: ggml's layouts, little-endian.
#pragma once

#include <cstdint>

namespace baton {

inline constexpr int kQuantBlock = 32;   // elements in a block of Q8_0, Q4_x, Q5_x
inline constexpr int kSuperBlock = 256;  // elements in a block of Q4_K, Q5_K, Q6_K

// x[i] = d * qs[i]
struct BlockQ8_0 {
  std::uint16_t d;  // fp16
  std::int8_t qs[kQuantBlock];
};
static_assert(sizeof(BlockQ8_0) == 34);

// x[i] = d * (q[i] - 8); q[i] is the low nibble of qs[i] for i < 16, the high one of qs[i-16]
// after.
struct BlockQ4_0 {
  std::uint16_t d;  // fp16
  std::uint8_t qs[kQuantBlock / 2];
};
static_assert(sizeof(BlockQ4_0) == 18);

// x[i] = d * q[i] + m; nibbles as in BlockQ4_0.
struct BlockQ4_1 {
  std::uint16_t d;  // fp16
  std::uint16_t m;  // fp16
  std::uint8_t qs[kQuantBlock / 2];
};
static_assert(sizeof(BlockQ4_1) == 20);

// x[i] = d * (q[i] - 16); q[i] is the nibble as in BlockQ4_0 with bit i of `qh` (little-endian) as
// its fifth.
struct BlockQ5_0 {
  std::uint16_t d;  // fp16
  std::uint8_t qh[4];
  std::uint8_t qs[kQuantBlock / 2];
};
static_assert(sizeof(BlockQ5_0) == 22);

// x[i] = d * q[i] + m; q as in BlockQ5_0.
struct BlockQ5_1 {
  std::uint16_t d;  // fp16
  std::uint16_t m;  // fp16
  std::uint8_t qh[4];
  std::uint8_t qs[kQuantBlock / 2];
};
static_assert(sizeof(BlockQ5_1) == 24);

// Eight groups g of 32: x = (d * scale[g]) * q - dmin * min[g]. `scales` holds 6-bit pairs:
// scale[g] and min[g] for g < 4 are the low 6 bits of bytes g and g + 4; for g >= 4 they are the
// low and high nibble of byte g + 4 below the high 2 bits of bytes g - 4 and g. Groups 2i and 2i+1
// are the low and high nibbles of qs[32 i ..].
struct BlockQ4_K {
  std::uint16_t d;     // fp16
  std::uint16_t dmin;  // fp16
  std::uint8_t scales[12];
  std::uint8_t qs[kSuperBlock / 2];
};
static_assert(sizeof(BlockQ4_K) == 144);

// As BlockQ4_K, with bit g of qh[i] as the fifth bit of element i of group g.
struct BlockQ5_K {
  std::uint16_t d;     // fp16
  std::uint16_t dmin;  // fp16
  std::uint8_t scales[12];
  std::uint8_t qh[kSuperBlock / 8];
  std::uint8_t qs[kSuperBlock / 2];
};
static_assert(sizeof(BlockQ5_K) == 176);

// Sixteen groups g of 16: x = (d * scales[g]) * (q - 32). In each half h of 128 elements, element
// i + 32 j has its low 4 bits in a nibble of ql[64 h + i + 32 (j % 2)] (low for j < 2) and its high
// 2 bits in qh[32 h + i] at bit 2 j.
struct BlockQ6_K {
  std::uint8_t ql[kSuperBlock / 2];
  std::uint8_t qh[kSuperBlock / 4];
  std::int8_t scales[kSuperBlock / 16];
  std::uint16_t d;  // fp16
};
static_assert(sizeof(BlockQ6_K) == 210);

}  // namespace baton
