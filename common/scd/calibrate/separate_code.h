// A code whose components each decode to keys or to values, so that the two can have ranks of their
// own (arXiv 2606.07684 ablates r_K against r_V).
#pragma once

#include <cstdint>

#include "common/scd/calibrate/matrix.h"
#include "common/scd/calibrate/regression.h"
#include "common/scd/calibrate/statistics.h"

namespace baton {

// Components at most; 0: as many as there are.
struct SeparateRanks {
  std::int64_t keys = 0;
  std::int64_t values = 0;
};

// As FitLinearCode, of a target [K | V] of two equal halves: each is fitted by itself, under its
// own block of `metric`; what the metric says of errors in both together is left aside. Components
// of both in order of falling importance. `options.max_rank` is not looked at.
LinearCode FitSeparateCode(const Moments& moments, const Matrix& metric, const Matrix& prior,
                           const RegressionOptions& options, const SeparateRanks& ranks);

}  // namespace baton
