// Primitives of token sampling over one row of logits.
#pragma once

#include <cstdint>

namespace baton {

// Index of the largest of x [n]; the lowest index among equals. NaN is never chosen; -1 when n is
// 0 or every value is NaN.
std::int64_t ArgMax(const float* x, std::int64_t n);

// p[n] = softmax(x / temperature) (temperature > 0); -inf gives exactly 0. x and p may be the
// same. Returns false, p untouched, when no value is finite.
bool Softmax(const float* x, std::int64_t n, float temperature, float* p);

}  // namespace baton
