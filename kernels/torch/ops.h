// The kernels on Torch tensors: checks of shape, dtype and device, then the room `kernels`.
//
// For code that lives in Torch (calibration, training, evaluation) and must see exactly what the
// serving path computes. No Torch header is included here. Errors are c10::Error, as from ATen's
// own ops; a room that returns Status catches them at its edge. CUDA tensors run on the current
// stream's device in builds with BATON_WITH_CUDA and are refused otherwise; ops marked "CPU only"
// refuse them always. Nothing here records gradients.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/executor.h"
#include "kernels/packed_matrix.h"

namespace at {
class Tensor;
}

namespace baton::torch_ops {

// x [..., d] fp32 / rms * gamma [d]; an undefined gamma leaves it out. Same shape as x.
at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& gamma, double eps, Executor& executor);

// x [n, heads, head_dim] fp32 rotated by positions [n] int32, HF half-split form; inv_freq
// [head_dim / 2] fp32. A new tensor.
at::Tensor Rope(const at::Tensor& x, const at::Tensor& positions, const at::Tensor& inv_freq,
                double attention_scaling, Executor& executor);

// CPU only. w [out, in] of fp32, bf16 or fp16, packed as `dtype`.
PackedMatrix Pack(const at::Tensor& w, DType dtype, Executor& executor);

// CPU only. x [..., in] fp32 -> [..., out] fp32; bias [out] or undefined.
at::Tensor Linear(const at::Tensor& x, const PackedMatrix& w, const at::Tensor& bias,
                  Executor& executor);

// Rows of KV in pages of the serving layout, the same rows for every head, on the device of the
// tensors they were made from. Immutable.
class PagedKv {
 public:
  // k (rotated) and v [rows, kv_heads, head_dim] fp32; positions [rows] int32; bias [rows] fp32
  // added to the scores, or undefined. Stored as `dtype`.
  static PagedKv Create(const at::Tensor& k, const at::Tensor& v, const at::Tensor& positions,
                        const at::Tensor& bias, DType dtype);

  std::int64_t rows() const;
  int kv_heads() const;
  int head_dim() const;

  struct Pages;
  const Pages& pages() const { return *pages_; }

 private:
  explicit PagedKv(std::shared_ptr<const Pages> pages) : pages_(std::move(pages)) {}
  std::shared_ptr<const Pages> pages_;
};

struct AttentionOptions {
  double scale = 0;  // 0: 1 / sqrt(head_dim)
  int window = 0;    // sliding window in tokens; 0: none
};

// q [n, q_heads, head_dim] fp32 (rotated) at q_positions [n] int32 over the union of `segments`
// (all of one head count, head_dim and dtype; empty list: zeros). Returns {out as q, lse
// [n, q_heads]}.
std::vector<at::Tensor> Attention(const at::Tensor& q, const at::Tensor& q_positions,
                                  const std::vector<PagedKv>& segments,
                                  const AttentionOptions& options, Executor& executor);

// Column sums of the attention matrix: [kv_heads, sum of the segments' rows] fp32. `lse` as
// Attention returned it. See kernels/attention.h.
at::Tensor KeyMass(const at::Tensor& q, const at::Tensor& q_positions, const at::Tensor& lse,
                   const std::vector<PagedKv>& segments, const AttentionOptions& options,
                   Executor& executor);

}  // namespace baton::torch_ops
