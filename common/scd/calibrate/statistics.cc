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

// Some rows of a sum, and what is added to them.
struct Slab {
  at::Tensor sum, left, right;
};

constexpr std::int64_t kSlabRows = 96;

// Of sum += left^T right.
void AddSlabs(Matrix& sum, const at::Tensor& left, const at::Tensor& right,
              std::vector<Slab>& slabs) {
  const at::Tensor all = View(sum), transposed = left.t();
  for (std::int64_t begin = 0; begin < sum.rows; begin += kSlabRows) {
    const std::int64_t end = std::min(sum.rows, begin + kSlabRows);
    slabs.push_back({all.slice(0, begin, end), transposed.slice(0, begin, end), right});
  }
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

void PairedSums::Add(std::int64_t rows, const float* source, absl::Span<const float* const> targets,
                     Executor& executor) {
  if (rows == 0) return;
  const at::Tensor x = ToDouble(source, rows, sum_.cols);
  View(sum_).add_(x.sum(0, /*keepdim=*/true));
  std::vector<Slab> slabs;
  AddSlabs(gram_, x, x, slabs);
  for (std::size_t i = 0; i < targets_.size(); ++i) {
    Target& t = targets_[i];
    const at::Tensor y = ToDouble(targets[i], rows, t.sum.cols);
    View(t.sum).add_(y.sum(0, /*keepdim=*/true));
    AddSlabs(t.cross, x, y, slabs);
    AddSlabs(t.gram, y, y, slabs);
  }
  ForEach(executor, static_cast<std::int64_t>(slabs.size()), [&](std::int64_t i) {
    Slab& slab = slabs[static_cast<std::size_t>(i)];
    slab.sum.addmm_(slab.left, slab.right);
  });
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
