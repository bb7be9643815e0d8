// What a model's own attention makes of inputs that came from elsewhere: the K and V of a layer,
// for patched codes (scd.md, PATCH; arXiv 2606.07684, section 4).
//
//   KvProjection projection(model, adapters, adapter);
//   projection.Project(layer, inputs, rows, kv, executor);
//
// Immutable and thread-safe. The rows of an input do not depend on each other, and have the bits
// that ForwardPass makes of an equal input.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/model/model.h"
#include "kernels/executor.h"
#include "kernels/packed_matrix.h"

namespace baton {

class KvProjection {
 public:
  // `adapters` may be null with kNoAdapter. Weights are shared with the model, but for one whose
  // query rows do not fill whole panels (PackedMatrix::From): that is copied as fp32.
  KvProjection(std::shared_ptr<const Model> model, std::shared_ptr<const AdapterSet> adapters,
               int adapter, Executor& executor);

  // inputs [rows, hidden]: the stream that attention reads at this layer, in any scale: it is
  // brought to unit RMS here. kv [rows, 2 * kv_dim]: [K | V], biases, adapter and k-norm applied,
  // K before RoPE.
  void Project(int layer, const float* inputs, std::int64_t rows, float* kv,
               Executor& executor) const;

 private:
  const std::shared_ptr<const Model> model_;
  const std::shared_ptr<const AdapterSet> adapters_;
  const int adapter_;
  std::vector<PackedMatrix> kv_;  // of each layer: [2 * kv_dim, hidden]
};

}  // namespace baton
