// CUDA side of the dispatch, on checked contiguous tensors. Internal to the room.
//
// device_cuda.cc is compiled with BATON_WITH_CUDA, device_cpu_only.cc without; each defines all.
#pragma once

#include <cstdint>

namespace at {
class Tensor;
}

namespace baton::torch_ops {

// All throw c10::Error. x, y [n, d]; gamma [d] or undefined.
void RmsNormOnDevice(const at::Tensor& x, const at::Tensor& gamma, double eps, at::Tensor& y);
// x [n, heads, head_dim], rotated in place.
void RopeOnDevice(at::Tensor& x, const at::Tensor& positions, const at::Tensor& inv_freq,
                  double attention_scaling);

}  // namespace baton::torch_ops
