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

void SiluMulOnDevice(const at::Tensor& a, const at::Tensor&, std::int64_t, std::int64_t,
                     at::Tensor&) {
  Refuse("silu_mul", a);
}

void AddOnDevice(const at::Tensor& a, std::int64_t, std::int64_t, at::Tensor&) { Refuse("add", a); }

void EmbeddingOnDevice(const at::Tensor& table, DType, const at::Tensor&, at::Tensor&) {
  Refuse("embedding", table);
}

void ArgMaxOnDevice(const at::Tensor& logits, at::Tensor&) { Refuse("arg_max", logits); }

void SurprisalOnDevice(const at::Tensor& logits, const at::Tensor&, at::Tensor&, at::Tensor&) {
  Refuse("surprisal", logits);
}

void QuantizeOnDevice(const at::Tensor& x, CodeType, at::Tensor&, at::Tensor&) {
  Refuse("quantize_rows", x);
}

void DequantizeOnDevice(const at::Tensor& codes, const at::Tensor&, CodeType, at::Tensor&) {
  Refuse("dequantize_rows", codes);
}

void EmbeddingCodesOnDevice(const at::Tensor& codes, const at::Tensor&, CodeType, const at::Tensor&,
                            at::Tensor&) {
  Refuse("embedding_codes", codes);
}

void LinearCodesOnDevice(const at::Tensor& x, const at::Tensor&, const at::Tensor&, CodeType,
                         at::Tensor&) {
  Refuse("linear_codes", x);
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
