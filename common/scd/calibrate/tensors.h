// Between this room's matrices and Torch's. No Torch header is included here; sources that compute
// include <ATen/ATen.h> themselves.
#pragma once

#include <cstdint>
#include <functional>

#include "common/scd/calibrate/matrix.h"
#include "kernels/executor.h"

namespace at {
class Tensor;
}

namespace baton {

// Float64 [rows, cols] over the matrix's own memory: it must outlive the tensor, and an op in place
// changes it.
at::Tensor View(Matrix& matrix);
at::Tensor View(const Matrix& matrix);
// A copy of a 2-d tensor of any type.
Matrix ToMatrix(const at::Tensor& tensor);
// A float64 copy of fp32 rows [count, width].
at::Tensor ToDouble(const float* rows, std::int64_t count, std::int64_t width);

// While it lives Torch computes on the thread that calls it: what runs side by side is spread by
// ForEach, over the threads that forward passes use, and has the same bits for any number of them.
class SingleTorchThread {
 public:
  SingleTorchThread();
  ~SingleTorchThread();
  SingleTorchThread(const SingleTorchThread&) = delete;
  SingleTorchThread& operator=(const SingleTorchThread&) = delete;

 private:
  int before_;
};

// fn(0), ..., fn(n - 1), on any threads, in any order. What one of them throws is thrown here.
void ForEach(Executor& executor, std::int64_t n, const std::function<void(std::int64_t)>& fn);

}  // namespace baton
