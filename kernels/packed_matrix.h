// A weight matrix packed once for matrix products, and the product.
//
// Results are *batch invariant*: each output element is a sum over the inner dimension in one
// fixed order (sequential fused multiply-adds in fp32), whatever the number of rows, threads or
// the instruction set. A token computed alone, in a batch, in a chunk or on another node of the
// same weights gets the same bits: that is what makes a handed-off prefix token-identical.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "kernels/dtype.h"
#include "kernels/executor.h"

namespace baton {

class PackedMatrix {
 public:
  // Packs w [rows, cols] fp32 row major (an HF linear weight: out_features x in_features) into
  // panels of `dtype` (fp32, bf16 or fp16; values are rounded to nearest even).
  static PackedMatrix Pack(const float* w, std::int64_t rows, std::int64_t cols, DType dtype,
                           Executor& executor);
  PackedMatrix() = default;

  std::int64_t rows() const { return rows_; }  // output features
  std::int64_t cols() const { return cols_; }  // input features
  DType dtype() const { return dtype_; }
  std::size_t bytes() const { return bytes_; }
  // One row back as fp32 [cols] (embedding look-up of a tied head).
  void UnpackRow(std::int64_t row, float* dst) const;

  // y[n, rows] (row stride ldy) = x[n, cols] (row stride ldx) * W^T, or y += with accumulate.
  // fp32 in and out.
  void Multiply(const float* x, std::int64_t ldx, std::int64_t n, float* y, std::int64_t ldy,
                bool accumulate, Executor& executor) const;

 private:
  friend class PackedMatrixBuilder;
  friend class WeakPackedMatrix;

  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
  DType dtype_ = DType::kF32;
  std::size_t bytes_ = 0;
  std::shared_ptr<std::byte[]> panels_;  // shared: copies are cheap, weights are immutable
};

// Packs a matrix in pieces, on any threads, from rows that are made on demand: the whole never
// exists in fp32.
class PackedMatrixBuilder {
 public:
  static constexpr std::int64_t kPanelRows = 32;
  // Writes rows [begin, begin + count) of the matrix to dst [count, cols] as fp32. `count` is at
  // most kPanelRows.
  using RowReader = std::function<void(std::int64_t begin, std::int64_t count, float* dst)>;

  PackedMatrixBuilder(std::int64_t rows, std::int64_t cols, DType dtype);
  std::int64_t panels() const { return (matrix_.rows_ + kPanelRows - 1) / kPanelRows; }
  // Panels [begin, end); each panel once. Any thread.
  void Pack(std::int64_t begin, std::int64_t end, const RowReader& rows);
  // When every panel is packed.
  PackedMatrix Finish() && { return std::move(matrix_); }

 private:
  PackedMatrix matrix_;
};

// A packed matrix that lives as long as somebody else holds it.
class WeakPackedMatrix {
 public:
  WeakPackedMatrix() = default;
  explicit WeakPackedMatrix(const PackedMatrix& matrix);
  // Nothing once the last holder is gone.
  std::optional<PackedMatrix> Lock() const;

 private:
  PackedMatrix shape_;  // without panels
  std::weak_ptr<std::byte[]> panels_;
};

}  // namespace baton
