// CUDA side of the dispatch, on checked contiguous tensors. Internal to the room.
//
// device_cuda.cc is compiled with BATON_WITH_CUDA, device_cpu_only.cc without; each defines all.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/attention.h"
#include "kernels/codes_math.h"

namespace at {
class Tensor;
}

namespace baton::torch_ops {

// All throw c10::Error. x, y [n, d]; gamma [d] or undefined.
void RmsNormOnDevice(const at::Tensor& x, const at::Tensor& gamma, double eps, at::Tensor& y);
// x [n, heads, head_dim], rotated in place.
void RopeOnDevice(at::Tensor& x, const at::Tensor& positions, const at::Tensor& inv_freq,
                  double attention_scaling);
// y = silu(a) * b, all [n, d].
void SiluMulOnDevice(const at::Tensor& a, const at::Tensor& b, std::int64_t n, std::int64_t d,
                     at::Tensor& y);
// y += a, both [n, d].
void AddOnDevice(const at::Tensor& a, std::int64_t n, std::int64_t d, at::Tensor& y);
// table [vocab, d], ids [n], y [n, d].
void EmbeddingOnDevice(const at::Tensor& table, DType dtype, const at::Tensor& ids, at::Tensor& y);
// logits [n, vocab], tokens [n].
void ArgMaxOnDevice(const at::Tensor& logits, at::Tensor& tokens);
// logits [n, vocab]; targets, surprisal, lse [n].
void SurprisalOnDevice(const at::Tensor& logits, const at::Tensor& targets, at::Tensor& surprisal,
                       at::Tensor& lse);

// A matrix of codes, with or without its values: x or y [n, d].
void QuantizeOnDevice(const at::Tensor& x, CodeType type, at::Tensor& codes, at::Tensor& scales);
void DequantizeOnDevice(const at::Tensor& codes, const at::Tensor& scales, CodeType type,
                        at::Tensor& y);
// ids [n], y [n, d].
void EmbeddingCodesOnDevice(const at::Tensor& codes, const at::Tensor& scales, CodeType type,
                            const at::Tensor& ids, at::Tensor& y);
// x [n, in], y [n, out].
void LinearCodesOnDevice(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& scales,
                         CodeType type, at::Tensor& y);

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
