#include <ATen/ATen.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "kernels/cuda/cuda_ops.h"
#include "kernels/torch/device.h"

namespace baton::torch_ops {
namespace {

// Through c10's device-independent interface: a process without a GPU need not load libc10_cuda.
cuda::Stream CurrentStream(const at::Tensor& x) {
  const c10::impl::VirtualGuardImpl guard(x.device().type());
  return static_cast<cuda::Stream>(guard.getStream(x.device()).native_handle());
}

void CheckLaunch(const char* op, int error) {
  TORCH_CHECK(error == 0, op, ": ", cuda::CudaErrorText(error));
}

}  // namespace

void RmsNormOnDevice(const at::Tensor& x, const at::Tensor& gamma, double eps, at::Tensor& y) {
  const c10::DeviceGuard device(x.device());
  CheckLaunch("rms_norm", cuda::RmsNorm(x.const_data_ptr<float>(), x.size(1),
                                        gamma.defined() ? gamma.const_data_ptr<float>() : nullptr,
                                        static_cast<float>(eps), x.size(0), x.size(1),
                                        y.mutable_data_ptr<float>(), y.size(1), CurrentStream(x)));
}

void RopeOnDevice(at::Tensor& x, const at::Tensor& positions, const at::Tensor& inv_freq,
                  double attention_scaling) {
  const c10::DeviceGuard device(x.device());
  const int heads = static_cast<int>(x.size(1)), head_dim = static_cast<int>(x.size(2));
  CheckLaunch("rope",
              cuda::Rope(x.mutable_data_ptr<float>(), x.size(1) * x.size(2),
                         positions.const_data_ptr<std::int32_t>(), inv_freq.const_data_ptr<float>(),
                         static_cast<float>(attention_scaling), heads, head_dim, x.size(0),
                         CurrentStream(x)));
}

}  // namespace baton::torch_ops
