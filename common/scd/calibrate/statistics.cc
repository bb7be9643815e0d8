#include "common/scd/calibrate/statistics.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "common/scd/calibrate/tensors.h"

namespace baton {
namespace {

// sum / n - mean mean^T.
Matrix Central(const Matrix& sum, double n, const std::vector<double>& left,
               const std::vector<double>& right) {
  Matrix m = sum;
  for (std::int64_t i = 0; i < m.rows; ++i) {
    for (std::int64_t j = 0; j < m.cols; ++j) {
      m.at(i, j) =
          m.at(i, j) / n - left[static_cast<std::size_t>(i)] * right[static_cast<std::size_t>(j)];
    }
  }
  return m;
}

std::vector<double> Mean(const Matrix& sum, double n) {
  std::vector<double> mean = sum.values;
  for (double& x : mean) x /= n;
  return mean;
}

}  // namespace

PairedSums::PairedSums(std::int64_t source_width, const std::vector<std::int64_t>& target_widths)
    : sum_(1, source_width), gram_(source_width, source_width) {
  for (const std::int64_t q : target_widths) {
    targets_.push_back({Matrix(1, q), Matrix(source_width, q), Matrix(q, q)});
  }
}

void PairedSums::Add(std::int64_t rows, const float* source,
                     absl::Span<const float* const> targets) {
  if (rows == 0) return;
  const at::Tensor x = ToDouble(source, rows, sum_.cols);
  View(sum_).add_(x.sum(0, /*keepdim=*/true));
  View(gram_).addmm_(x.t(), x);
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    Target& t = targets_[i];
    const at::Tensor y = ToDouble(targets[i], rows, t.sum.cols);
    View(t.sum).add_(y.sum(0, /*keepdim=*/true));
    View(t.cross).addmm_(x.t(), y);
    View(t.gram).addmm_(y.t(), y);
  }
  count_ += rows;
}

Moments PairedSums::Finish(std::size_t target) const {
  const Target& t = targets_[target];
  const auto n = static_cast<double>(std::max<std::int64_t>(1, count_));
  Moments m;
  m.count = count_;
  m.source_mean = Mean(sum_, n);
  m.target_mean = Mean(t.sum, n);
  m.source = Central(gram_, n, m.source_mean, m.source_mean);
  m.cross = Central(t.cross, n, m.source_mean, m.target_mean);
  m.target = Central(t.gram, n, m.target_mean, m.target_mean);
  return m;
}

RowReservoir::RowReservoir(std::int64_t width, std::int64_t capacity, std::uint64_t seed)
    : width_(width), capacity_(capacity), random_(seed) {}

void RowReservoir::Add(std::int64_t rows, const float* values) {
  for (std::int64_t r = 0; r < rows; ++r, values += width_) {
    ++seen_;
    if (seen_ <= capacity_) {
      values_.insert(values_.end(), values, values + width_);
      continue;
    }
    // Not std::uniform_int_distribution, whose numbers differ between libraries.
    const auto at = static_cast<std::int64_t>(random_() % static_cast<std::uint64_t>(seen_));
    if (at < capacity_) std::copy(values, values + width_, values_.begin() + at * width_);
  }
}

}  // namespace baton
