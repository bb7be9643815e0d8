// CUDA side of the dispatch, on checked contiguous tensors. Internal to the room.
//
// device_cuda.cc is compiled with BATON_WITH_CUDA, device_cpu_only.cc without; each defines all.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention.h"

namespace at {
class Tensor;
}

namespace baton::torch_ops {

// All throw c10::Error. x, y [n, d]; gamma [d] or undefined.
void RmsNormOnDevice(const at::Tensor& x, const at::Tensor& gamma, double eps, at::Tensor& y);
// x [n, heads, head_dim], rotated in place.
void RopeOnDevice(at::Tensor& x, const at::Tensor& positions, const at::Tensor& inv_freq,
                  double attention_scaling);

// k, v [rows, kv_heads, head_dim] and positions [rows] written into pages: a byte tensor
// [kv_heads * pages * page_bytes] with the pages of one head after the other.
at::Tensor PagesOnDevice(const KvPageLayout& layout, const at::Tensor& k, const at::Tensor& v,
                         const at::Tensor& positions);

// What AttentionTask says, for one task. The segments lie in host memory and hold device pointers.
struct DeviceTask {
  AttentionShape shape;
  KvPageLayout layout;
  const std::vector<KvSegment>& segments;
  const std::vector<std::int32_t>& segment_offsets;  // [kv_heads + 1]
  const at::Tensor& q;                               // [n, q_heads, head_dim]
  const at::Tensor& q_positions;                     // [n]
};
// out as q, lse [n, q_heads].
void AttentionOnDevice(const DeviceTask& task, at::Tensor& out, at::Tensor& lse);
// mass [kv_heads, rows of all segments].
void KeyMassOnDevice(const DeviceTask& task, const at::Tensor& lse, at::Tensor& mass);

// Devices the CUDA kernels can use: 0 without a GPU, and in a build without them.
int CudaDevices();

}  // namespace baton::torch_ops
