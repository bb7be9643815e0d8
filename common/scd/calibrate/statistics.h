// What calibration remembers of the rows it saw: sums in float64, whose size does not grow with
// their number, and a sample of bounded size.
//
//   PairedSums sums(p, {q, q});
//   sums.Add(rows, x, {y0, y1}, executor);    // any number of times
//   const Moments m = sums.Finish(0);         // of x and y0
//
// The first rows of a text (kSinkTokens) are the caller's to leave out: their keys are unlike all
// others, and a consumer computes them itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <vector>

#include "absl/types/span.h"
#include "common/scd/calibrate/matrix.h"
#include "kernels/executor.h"
#include "kernels/kv_page.h"

namespace baton {

// Means and central second moments (divided by the count) of a source x [p] and a target y [q].
struct Moments {
  std::int64_t count = 0;
  std::vector<double> source_mean;  // [p]
  std::vector<double> target_mean;  // [q]
  Matrix source;                    // E (x - mean)(x - mean)^T [p, p]
  Matrix cross;                     // E (x - mean)(y - mean)^T [p, q]
  Matrix target;                    // [q, q]
};

class PairedSums {
 public:
  PairedSums(std::int64_t source_width, const std::vector<std::int64_t>& target_widths);

  // `source`: fp32 [rows, source_width]; targets[i]: fp32 [rows, target_widths[i]], of the same
  // tokens; more than there are widths are not looked at. Throws c10::Error when memory runs out.
  void Add(std::int64_t rows, const float* source, absl::Span<const float* const> targets,
           Executor& executor);

  std::int64_t count() const { return count_; }
  // Of the source and target number `target`. Zeros when nothing was added.
  Moments Finish(std::size_t target) const;

 private:
  struct Target {
    Matrix sum;    // [1, q]
    Matrix cross;  // X^T Y [p, q]
    Matrix gram;   // Y^T Y [q, q]
  };

  std::int64_t count_ = 0;
  Matrix sum_;   // [1, p]
  Matrix gram_;  // X^T X [p, p]
  std::vector<Target> targets_;
};

// A uniform sample of the rows that went by (J. Vitter, "Random sampling with a reservoir", 1985,
// algorithm R). The same rows and seed give the same sample.
class RowReservoir {
 public:
  RowReservoir(std::int64_t width, std::int64_t capacity, std::uint64_t seed);

  // fp32 [rows, width].
  void Add(std::int64_t rows, const float* values);

  std::int64_t size() const { return static_cast<std::int64_t>(values_.size()) / width_; }
  const std::vector<float>& values() const { return values_; }  // [size, width]

 private:
  std::int64_t width_;
  std::int64_t capacity_;
  std::int64_t seen_ = 0;
  std::mt19937_64 random_;
  std::vector<float> values_;
};

}  // namespace baton
