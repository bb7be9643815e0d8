#include "common/scd/calibrate/quantiser.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

namespace baton {
namespace {

constexpr int kLloydBits = 4;
constexpr int kIterations = 200;
constexpr double kLeastGain = 1e-7;  // of the distortion, per iteration
constexpr double kOutside = 0.0005;

// First and second moments of any run of the sorted samples.
class PrefixSums {
 public:
  explicit PrefixSums(absl::Span<const float> sorted) : sum_{0}, square_{0} {
    for (const float x : sorted) {
      sum_.push_back(sum_.back() + x);
      square_.push_back(square_.back() + static_cast<double>(x) * x);
    }
  }
  double Mean(std::size_t begin, std::size_t end) const {
    return (sum_[end] - sum_[begin]) / static_cast<double>(end - begin);
  }
  // Sum of (x - level)^2.
  double Error(std::size_t begin, std::size_t end, double level) const {
    const double n = static_cast<double>(end - begin);
    return square_[end] - square_[begin] - 2 * level * (sum_[end] - sum_[begin]) +
           n * level * level;
  }

 private:
  std::vector<double> sum_, square_;
};

// Where the samples nearest to each level end: [levels].
std::vector<std::size_t> Cells(absl::Span<const float> sorted, const std::vector<double>& levels) {
  std::vector<std::size_t> ends;
  for (std::size_t i = 0; i + 1 < levels.size(); ++i) {
    const double middle = (levels[i] + levels[i + 1]) / 2;
    ends.push_back(static_cast<std::size_t>(std::upper_bound(sorted.begin(), sorted.end(), middle) -
                                            sorted.begin()));
  }
  ends.push_back(sorted.size());
  return ends;
}

std::vector<double> Lloyd(absl::Span<const float> sorted, std::size_t count) {
  const PrefixSums sums(sorted);
  std::vector<double> levels;
  for (std::size_t i = 0; i < count; ++i) {
    levels.push_back(sorted[(2 * i + 1) * sorted.size() / (2 * count)]);
  }
  double last = std::numeric_limits<double>::infinity();
  for (int iteration = 0; iteration < kIterations; ++iteration) {
    const std::vector<std::size_t> ends = Cells(sorted, levels);
    double error = 0;
    std::size_t begin = 0;
    for (std::size_t i = 0; i < count; ++i) {
      // An empty cell keeps its level.
      if (ends[i] > begin) levels[i] = sums.Mean(begin, ends[i]);
      error += ends[i] > begin ? sums.Error(begin, ends[i], levels[i]) : 0;
      begin = std::max(begin, ends[i]);
    }
    if (last - error <= kLeastGain * error) break;
    last = error;
  }
  return levels;
}

std::vector<double> Uniform(absl::Span<const float> sorted, std::size_t count) {
  const auto last = static_cast<double>(sorted.size() - 1);
  const double low = sorted[static_cast<std::size_t>(last * kOutside / 2)];
  const double high = sorted[static_cast<std::size_t>(std::ceil(last * (1 - kOutside / 2)))];
  std::vector<double> levels;
  for (std::size_t i = 0; i < count; ++i) {
    levels.push_back(low +
                     (high - low) * (static_cast<double>(i) + 0.5) / static_cast<double>(count));
  }
  return levels;
}

}  // namespace

std::vector<float> MakeLevels(absl::Span<const float> sorted, int bits) {
  const std::size_t count = std::size_t{1} << bits;
  const std::vector<double> exact =
      bits <= kLloydBits ? Lloyd(sorted, count) : Uniform(sorted, count);
  std::vector<float> levels;
  for (const double level : exact) {
    auto x = static_cast<float>(level);
    // Equal samples give equal levels; codes need them apart.
    if (!levels.empty() && x <= levels.back()) {
      x = std::nextafter(levels.back(), std::numeric_limits<float>::infinity());
    }
    levels.push_back(x);
  }
  return levels;
}

double Distortion(absl::Span<const float> sorted, absl::Span<const float> levels) {
  double sum = 0;
  std::size_t at = 0;
  for (const float x : sorted) {
    while (at + 1 < levels.size() && std::abs(x - levels[at + 1]) <= std::abs(x - levels[at])) {
      ++at;
    }
    const double d = static_cast<double>(x) - levels[at];
    sum += d * d;
  }
  return sum / static_cast<double>(sorted.size());
}

}  // namespace baton
