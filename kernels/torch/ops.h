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

#include "kernels/codes_math.h"
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

// silu(gate) * up, element by element; both fp32 of one shape.
at::Tensor SiluMul(const at::Tensor& gate, const at::Tensor& up, Executor& executor);

// x + y, both fp32 of one shape.
at::Tensor Add(const at::Tensor& x, const at::Tensor& y, Executor& executor);

// Rows ids [n] int32 of table [vocab, d] (fp32, bf16 or fp16) as fp32 [n, d]. An id outside
// [0, vocab) gives a row of NaN.
at::Tensor Embedding(const at::Tensor& table, const at::Tensor& ids);

// int32 [n]: the largest of each row of logits [n, vocab] fp32, the lowest index among equals; NaN
// is never chosen, -1 where nothing else is.
at::Tensor ArgMax(const at::Tensor& logits);

// {lse - logits[i, targets[i]], lse}, both [n] fp32 in nats, of logits [n, vocab] fp32 and targets
// [n] int32. A target outside [0, vocab) gives NaN.
std::vector<at::Tensor> Surprisal(const at::Tensor& logits, const at::Tensor& targets);

// x [n, d] fp32, d a multiple of 32, as codes (kernels/codes.h): {codes uint8 [n, d or d / 2],
// scales fp16 [n, d / 32 (x 2 for int4)]}.
std::vector<at::Tensor> QuantizeRows(const at::Tensor& x, CodeType type, Executor& executor);
// The inverse: fp32 [n, d].
at::Tensor DequantizeRows(const at::Tensor& codes, const at::Tensor& scales, CodeType type,
                          Executor& executor);
// Rows ids of a table of codes, as Embedding.
at::Tensor EmbeddingCodes(const at::Tensor& codes, const at::Tensor& scales, CodeType type,
                          const at::Tensor& ids, Executor& executor);
// x [n, in] fp32 times the transposed matrix [out, in] of codes: fp32 [n, out].
at::Tensor LinearCodes(const at::Tensor& x, const at::Tensor& codes, const at::Tensor& scales,
                       CodeType type, Executor& executor);

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
