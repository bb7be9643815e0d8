// A weight matrix packed once for matrix products, and the product.
//
// Results are *batch invariant*: each output element is a sum over the inner dimension in one
// fixed order (sequential fused multiply-adds in fp32), whatever the number of rows, threads or
// the instruction set. A token computed alone, in a batch, in a chunk or on another node of the
// same weights gets the same bits: that is what makes a handed-off prefix token-identical.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

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
  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
  DType dtype_ = DType::kF32;
  std::size_t bytes_ = 0;
  std::shared_ptr<std::byte[]> panels_;  // shared: copies are cheap, weights are immutable
};

}  // namespace baton
