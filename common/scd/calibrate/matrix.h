// A dense matrix of doubles, row major: what passes between the concepts of this room, so that no
// header needs Torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace baton {

struct Matrix {
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::vector<double> values;  // [rows, cols]

  Matrix() = default;
  // Zeros.
  Matrix(std::int64_t rows, std::int64_t cols)
      : rows(rows), cols(cols), values(static_cast<std::size_t>(rows * cols)) {}
  static Matrix Identity(std::int64_t n) {
    Matrix m(n, n);
    for (std::int64_t i = 0; i < n; ++i) m.at(i, i) = 1;
    return m;
  }

  double& at(std::int64_t row, std::int64_t col) {
    return values[static_cast<std::size_t>(row * cols + col)];
  }
  double at(std::int64_t row, std::int64_t col) const {
    return values[static_cast<std::size_t>(row * cols + col)];
  }
  bool empty() const { return values.empty(); }
};

}  // namespace baton
