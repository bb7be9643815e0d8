// A consumer's forward pass in LibTorch, for what needs gradients with respect to the K/V of a
// prefix: the training of decoders and the Fisher metric. fp32, weights frozen.
//
//   DifferentiableModel model(consumer);
//   at::Tensor logits = model.Logits(tokens, past);   // [n, vocab]
//
// Sources include <ATen/ATen.h> themselves; this header does not.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "common/scd/calibrate/model_probe.h"

namespace at {
class Tensor;
}

namespace baton {

class DifferentiableModel {
 public:
  // Unpacks every weight, with the adapter added: 4 bytes a parameter. Throws c10::Error when
  // memory runs out.
  explicit DifferentiableModel(const ProbedModel& model);
  ~DifferentiableModel();

  // [K | V] that a layer makes of attention inputs [rows, hidden] in any scale, K before RoPE:
  // [rows, 2 * kv_dim].
  at::Tensor KvOf(std::size_t layer, const at::Tensor& inputs) const;
  // Of `tokens`, which follow the rows of `past`: one tensor [rows, 2 * kv_dim] a layer, [K | V]
  // with K before RoPE, of positions 0, 1, .... All layers have as many rows.
  at::Tensor Logits(absl::Span<const std::int32_t> tokens,
                    const std::vector<at::Tensor>& past) const;

 private:
  struct Weights;
  std::unique_ptr<const Weights> weights_;
};

}  // namespace baton
