#include <ATen/ATen.h>

#include "kernels/torch/device.h"

namespace baton::torch_ops {
namespace {

void Refuse(const char* op, const at::Tensor& x) {
  TORCH_CHECK(false, op, ": tensor on ", x.device(), ", but this build has no CUDA kernels");
}

}  // namespace

void RmsNormOnDevice(const at::Tensor& x, const at::Tensor&, double, at::Tensor&) {
  Refuse("rms_norm", x);
}

void RopeOnDevice(at::Tensor& x, const at::Tensor&, const at::Tensor&, double) {
  Refuse("rope", x);
}

at::Tensor PagesOnDevice(const KvPageLayout&, const at::Tensor& k, const at::Tensor&,
                         const at::Tensor&) {
  Refuse("paged_kv", k);
  return {};
}

void AttentionOnDevice(const DeviceTask& task, at::Tensor&, at::Tensor&) {
  Refuse("attention", task.q);
}

void KeyMassOnDevice(const DeviceTask& task, const at::Tensor&, at::Tensor&) {
  Refuse("key_mass", task.q);
}

int CudaDevices() { return 0; }

}  // namespace baton::torch_ops
