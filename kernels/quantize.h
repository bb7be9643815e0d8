// fp32 weights -> blocks of codes, by ggml's rules: the bits that llama.cpp's quantiser and the
// `gguf` package write.
//
// `n` (1..32) values are one block; what is missing to 32 has code 0 and no say in the scales.
// Scales beyond fp16's range become infinite, as those of values that are not finite.
#pragma once

#include "kernels/quant_blocks.h"

namespace baton {

// d = max|x| / 127, q = round(x / d) with halves away from zero; d is rounded to fp16 after q was
// made with the fp32 one. |error| <= d / 2 + 127 d 2^-11.
BlockQ8_0 QuantizeInt8(const float* x, int n);

// m = min x, d = (max x - m) / 15, q = floor((x - m) / d + 0.5), at most 15; d and m are rounded to
// fp16 afterwards. |error| <= d / 2 + (15 d + |m|) 2^-11.
BlockQ4_1 QuantizeInt4(const float* x, int n);

}  // namespace baton
