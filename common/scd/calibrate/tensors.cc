#include "common/scd/calibrate/tensors.h"

#include <ATen/ATen.h>

#include <cstring>

namespace baton {

at::Tensor View(Matrix& matrix) {
  return at::from_blob(matrix.values.data(), {matrix.rows, matrix.cols}, at::kDouble);
}

at::Tensor View(const Matrix& matrix) {
  // Torch knows no read-only tensors; callers use this one as an operand.
  return at::from_blob(const_cast<double*>(matrix.values.data()), {matrix.rows, matrix.cols},
                       at::kDouble);
}

Matrix ToMatrix(const at::Tensor& tensor) {
  const at::Tensor from = tensor.to(at::kDouble).contiguous();
  Matrix matrix(from.size(0), from.size(1));
  if (!matrix.empty()) {
    std::memcpy(matrix.values.data(), from.data_ptr<double>(),
                matrix.values.size() * sizeof(double));
  }
  return matrix;
}

at::Tensor ToDouble(const float* rows, std::int64_t count, std::int64_t width) {
  return at::from_blob(const_cast<float*>(rows), {count, width}, at::kFloat).to(at::kDouble);
}

}  // namespace baton
