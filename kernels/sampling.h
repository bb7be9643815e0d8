// Primitives of token sampling over one row of logits.
#pragma once

#include <cstdint>

namespace baton {

// Index of the largest of x [n]; the lowest index among equals. NaN is never chosen; -1 when n is
// 0 or every value is NaN.
std::int64_t ArgMax(const float* x, std::int64_t n);

}  // namespace baton
