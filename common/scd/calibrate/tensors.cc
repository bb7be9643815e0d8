#include "common/scd/calibrate/tensors.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <cstring>
#include <exception>
#include <mutex>

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

SingleTorchThread::SingleTorchThread() : before_(at::get_num_threads()) { at::set_num_threads(1); }

SingleTorchThread::~SingleTorchThread() { at::set_num_threads(before_); }

void ForEach(Executor& executor, std::int64_t n, const std::function<void(std::int64_t)>& fn) {
  std::mutex mu;
  std::exception_ptr thrown;
  executor.ParallelFor(n, 1, [&](std::int64_t begin, std::int64_t end) {
    try {
      for (std::int64_t i = begin; i < end; ++i) fn(i);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(mu);
      if (thrown == nullptr) thrown = std::current_exception();
    }
  });
  if (thrown != nullptr) std::rethrow_exception(thrown);
}

}  // namespace baton
