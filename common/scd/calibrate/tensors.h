// Between this room's matrices and Torch's. No Torch header is included here; sources that compute
// include <ATen/ATen.h> themselves.
#pragma once

#include <cstdint>

#include "common/scd/calibrate/matrix.h"

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
// A float64 copy of fp32 rows [rows, width].
at::Tensor ToDouble(const float* rows, std::int64_t count, std::int64_t width);

}  // namespace baton
