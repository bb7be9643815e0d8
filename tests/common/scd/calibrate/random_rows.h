// Random matrices and the plainest algebra, for tests to compare with.
#pragma once

#include <cmath>
#include <cstdint>
#include <random>
#include <stdexcept>
#include <utility>
#include <vector>

#include "common/scd/calibrate/matrix.h"

namespace baton {

inline Matrix RandomMatrix(std::int64_t rows, std::int64_t cols, std::uint32_t seed) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal;
  Matrix m(rows, cols);
  for (double& x : m.values) x = normal(random);
  return m;
}

inline Matrix Transposed(const Matrix& a) {
  Matrix t(a.cols, a.rows);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < a.cols; ++j) t.at(j, i) = a.at(i, j);
  }
  return t;
}

inline Matrix Product(const Matrix& a, const Matrix& b) {
  Matrix c(a.rows, b.cols);
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t k = 0; k < a.cols; ++k) {
      for (std::int64_t j = 0; j < b.cols; ++j) c.at(i, j) += a.at(i, k) * b.at(k, j);
    }
  }
  return c;
}

inline Matrix Plus(Matrix a, const Matrix& b, double times = 1) {
  for (std::size_t i = 0; i < a.values.size(); ++i) a.values[i] += times * b.values[i];
  return a;
}

inline double Trace(const Matrix& a) {
  double sum = 0;
  for (std::int64_t i = 0; i < a.rows; ++i) sum += a.at(i, i);
  return sum;
}

// x of a x = b, by elimination with pivots.
inline Matrix Solve(Matrix a, Matrix b) {
  for (std::int64_t i = 0; i < a.rows; ++i) {
    std::int64_t pivot = i;
    for (std::int64_t r = i; r < a.rows; ++r) {
      if (std::abs(a.at(r, i)) > std::abs(a.at(pivot, i))) pivot = r;
    }
    if (a.at(pivot, i) == 0) throw std::runtime_error("singular");
    for (std::int64_t j = 0; j < a.cols; ++j) std::swap(a.at(i, j), a.at(pivot, j));
    for (std::int64_t j = 0; j < b.cols; ++j) std::swap(b.at(i, j), b.at(pivot, j));
    for (std::int64_t r = 0; r < a.rows; ++r) {
      if (r == i) continue;
      const double f = a.at(r, i) / a.at(i, i);
      for (std::int64_t j = 0; j < a.cols; ++j) a.at(r, j) -= f * a.at(i, j);
      for (std::int64_t j = 0; j < b.cols; ++j) b.at(r, j) -= f * b.at(i, j);
    }
  }
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < b.cols; ++j) b.at(i, j) /= a.at(i, i);
  }
  return b;
}

inline double LargestDifference(const Matrix& a, const Matrix& b) {
  if (a.rows != b.rows || a.cols != b.cols) return INFINITY;
  double most = 0;
  for (std::size_t i = 0; i < a.values.size(); ++i) {
    most = std::max(most, std::abs(a.values[i] - b.values[i]));
  }
  return most;
}

inline std::vector<float> ToFloats(const Matrix& m) { return {m.values.begin(), m.values.end()}; }

}  // namespace baton
