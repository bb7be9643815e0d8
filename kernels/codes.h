// Rows of fp32 to int8 or int4 codes and back, and a product with a matrix kept as codes. The same
// codes and scales as in the blocks of quantize.h, but planar, so that a device reads codes in
// whole vectors (a block of Q8_0 has 34 bytes):
//   int8: codes [rows][cols],     scales fp16 [rows][cols / 32]
//   int4: codes [rows][cols / 2], scales fp16 [rows][cols / 32][2] = {d, m}
// Byte j of an int4 block holds value j in its low half and value j + 16 in its high half. CPU
// reference of the device's versions.
#pragma once

#include <cstdint>

#include "kernels/codes_math.h"
#include "kernels/executor.h"

namespace baton {

// x [n, d] fp32 (row stride ldx) -> codes [n, d or d / 2 bytes], scales [n, d / 32 (x 2 for int4)]
// fp16 bits. d is a multiple of 32; values are finite, |x| <= 65504 for int4 (the minimum is
// stored as fp16).
void QuantizeRows(const float* x, std::int64_t ldx, std::int64_t n, std::int64_t d, CodeType type,
                  std::uint8_t* codes, std::uint16_t* scales, Executor& executor);

// The inverse: y [n, d] fp32 (row stride ldy).
void DequantizeRows(const std::uint8_t* codes, const std::uint16_t* scales, std::int64_t n,
                    std::int64_t d, CodeType type, float* y, std::int64_t ldy, Executor& executor);

// y [n, rows] (row stride ldy) = x [n, cols] (row stride ldx) * W^T with W [rows, cols] as codes.
// Each element is one sequential sum over the blocks in fp32. For comparison, not for speed.
void MultiplyCodes(const std::uint8_t* codes, const std::uint16_t* scales, CodeType type,
                   std::int64_t rows, std::int64_t cols, const float* x, std::int64_t ldx,
                   std::int64_t n, float* y, std::int64_t ldy, Executor& executor);

}  // namespace baton
