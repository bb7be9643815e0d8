// A codec's layer applied to rows, there and back.
#pragma once

#include <cstdint>

#include "common/scd/codec.h"
#include "kernels/executor.h"

namespace baton {

// x [rows, source_width] to out [rows, 2 * kv_dim] through quantised codes.
void CodeRows(const Codec& codec, int layer, std::int64_t rows, const float* x, float* out,
              Executor& executor);

}  // namespace baton
