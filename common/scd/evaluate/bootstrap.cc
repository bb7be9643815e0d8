#include "common/scd/evaluate/bootstrap.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>
#include <random>

namespace baton {
namespace {

// Between the two nearest, as NumPy's default.
double Quantile(const std::vector<double>& sorted, double q) {
  const double at = q * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<std::size_t>(std::floor(at));
  const std::size_t above = std::min(below + 1, sorted.size() - 1);
  return sorted[below] + (at - static_cast<double>(below)) * (sorted[above] - sorted[below]);
}

}  // namespace

Interval RatioInterval(const std::vector<double>& numerators,
                       const std::vector<double>& denominators, int resamples, std::uint64_t seed) {
  const std::size_t n = numerators.size();
  std::vector<double> ratios;
  if (n >= 2) {
    std::mt19937_64 random(seed);
    for (int i = 0; i < resamples; ++i) {
      double above = 0, below = 0;
      for (std::size_t draw = 0; draw < n; ++draw) {
        const std::size_t at = random() % n;
        above += numerators[at];
        below += denominators[at];
      }
      if (below != 0) ratios.push_back(above / below);
    }
  }
  if (ratios.empty()) {
    const double below = std::accumulate(denominators.begin(), denominators.end(), 0.0);
    const double above = std::accumulate(numerators.begin(), numerators.end(), 0.0);
    const double ratio = below != 0 ? above / below : 0;
    return {ratio, ratio};
  }
  std::sort(ratios.begin(), ratios.end());
  return {Quantile(ratios, 0.025), Quantile(ratios, 0.975)};
}

}  // namespace baton
