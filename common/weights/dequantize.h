// Stored weights -> fp32. Block layouts are ggml's, little-endian.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "common/weights/tensor_view.h"

namespace baton {

inline constexpr int kQuantBlock = 32;  // elements in a block of Q8_0, Q4_0, Q4_1

// x[i] = d * qs[i]
struct BlockQ8_0 {
  uint16_t d;  // fp16
  int8_t qs[kQuantBlock];
};
static_assert(sizeof(BlockQ8_0) == 34);

// x[i] = d * (q[i] - 8); q[i] is the low nibble of qs[i] for i < 16, the high one of qs[i-16]
// after.
struct BlockQ4_0 {
  uint16_t d;  // fp16
  uint8_t qs[kQuantBlock / 2];
};
static_assert(sizeof(BlockQ4_0) == 18);

// x[i] = d * q[i] + m; nibbles as in BlockQ4_0.
struct BlockQ4_1 {
  uint16_t d;  // fp16
  uint16_t m;  // fp16
  uint8_t qs[kQuantBlock / 2];
};
static_assert(sizeof(BlockQ4_1) == 20);

float HalfToFloat(uint16_t half);      // IEEE binary16, exact (subnormals, infinities, NaN)
float Bfloat16ToFloat(uint16_t bits);  // exact

// F32, F16, BF16, Q8_0, Q4_0, Q4_1.
bool IsDequantizable(StoredDType dtype);

// Converts `n` elements at `src` (any alignment) to `dst` [n]. Errors: Unimplemented for a dtype
// that is not dequantizable, InvalidArgument if `n` is not whole blocks.
absl::Status DequantizeRow(StoredDType dtype, const std::byte* src, float* dst, int64_t n);

}  // namespace baton
