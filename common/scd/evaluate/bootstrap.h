// How sure a mean or a ratio over documents is: the paired bootstrap. Documents are drawn with
// replacement, and with each one everything that was measured on it.
//
// Source: B. Efron, R. Tibshirani, An Introduction to the Bootstrap (1993), section 13.3
// (percentile interval).
#pragma once

#include <cstdint>
#include <vector>

namespace baton {

struct Interval {
  double low = 0;
  double high = 0;
};

// 95 % interval of sum(numerators) / sum(denominators) over entries that belong together by index.
// A draw whose denominators sum to 0 is left out. With fewer than two entries, or nothing left,
// both ends are the ratio itself (0 when that is 0 / 0). Equal seeds draw equal entries.
Interval RatioInterval(const std::vector<double>& numerators,
                       const std::vector<double>& denominators, int resamples, std::uint64_t seed);

}  // namespace baton
