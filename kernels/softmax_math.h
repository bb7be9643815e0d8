// Online softmax: sums of exponentials that carry their shift, and how two of them merge. C++17,
// host and device.
//
//   SoftmaxState s = EmptySoftmax();
//   for (float x : row) s = AddTerm(s, x);
//   log(sum(exp(row))) == LogSumExpOf(s)
#pragma once

#include <cmath>

#include "kernels/exp_math.h"
#include "kernels/hd.h"

namespace baton {

// sum(exp(x - max)) over the terms so far. Without terms (or with -inf only): {-inf, 0}.
struct SoftmaxState {
  float max;
  float sum;
};

BATON_HD SoftmaxState EmptySoftmax() { return {-__builtin_inff(), 0.0f}; }

BATON_HD SoftmaxState MergeSoftmax(SoftmaxState a, SoftmaxState b) {
  const float max = MaxT(a.max, b.max);
  // -inf - -inf would be NaN.
  if (max == -__builtin_inff()) return {max, 0.0f};
  return {max, FmaT(a.sum, ExpT(a.max - max), b.sum * ExpT(b.max - max))};
}

// One exponential a term: the larger of the two keeps its scale.
BATON_HD SoftmaxState AddTerm(SoftmaxState s, float x) {
  if (x == -__builtin_inff()) return s;
  if (x > s.max) return {x, FmaT(s.sum, ExpT(s.max - x), 1.0f)};
  return {s.max, s.sum + ExpT(x - s.max)};
}

BATON_HD float LogSumExpOf(SoftmaxState s) {
  return s.max == -__builtin_inff() ? s.max : s.max + logf(s.sum);
}

}  // namespace baton
