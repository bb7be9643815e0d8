#include "common/model/kv_projection.h"

#include <cstddef>
#include <utility>

#include "common/model/model_weights.h"
#include "kernels/elementwise.h"

namespace baton {
namespace {

// Rows of `qkv` from `begin` on.
PackedMatrix Tail(const PackedMatrix& qkv, std::int64_t begin, Executor& executor) {
  if (auto shared = qkv.From(begin)) return *std::move(shared);
  const std::int64_t rows = qkv.rows() - begin;
  std::vector<float> copy(static_cast<std::size_t>(rows * qkv.cols()));
  for (std::int64_t r = 0; r < rows; ++r) {
    qkv.UnpackRow(begin + r, copy.data() + r * qkv.cols());
  }
  return PackedMatrix::Pack(copy.data(), rows, qkv.cols(), WeightFormat::kF32, executor);
}

// The K and V parts of what an adapter adds to y [n, 2 * kv_dim].
void AddDelta(const LoraDelta& delta, std::int64_t q_dim, const float* x, std::int64_t n, float* y,
              std::int64_t ldy, Executor& executor) {
  if (delta.parts.empty() || delta.parts.back().column < q_dim) return;
  const std::int64_t ranks = delta.a.rows();
  std::vector<float> z(static_cast<std::size_t>(n * ranks));
  delta.a.Multiply(x, delta.a.cols(), n, z.data(), ranks, /*accumulate=*/false, executor);
  for (const LoraDelta::Part& part : delta.parts) {
    if (part.column < q_dim) continue;
    part.b.Multiply(z.data() + part.a_row, ranks, n, y + part.column - q_dim, ldy,
                    /*accumulate=*/true, executor);
  }
}

}  // namespace

KvProjection::KvProjection(std::shared_ptr<const Model> model,
                           std::shared_ptr<const AdapterSet> adapters, int adapter,
                           Executor& executor)
    : model_(std::move(model)), adapters_(std::move(adapters)), adapter_(adapter) {
  const Model::Weights& w = model_->weights();
  for (const LayerWeights& layer : w.layers) kv_.push_back(Tail(layer.qkv, w.q_dim(), executor));
}

void KvProjection::Project(int layer, const float* inputs, std::int64_t rows, float* kv,
                           Executor& executor) const {
  const Model::Weights& w = model_->weights();
  const auto at = static_cast<std::size_t>(layer);
  const LayerWeights& l = w.layers[at];
  const std::int64_t d = w.config.hidden, head_dim = w.config.head_dim, ld = 2 * w.kv_dim();
  std::vector<float> x(static_cast<std::size_t>(rows * d));
  RmsNorm(inputs, d, l.input_norm.data(), w.rms_eps, rows, d, x.data(), d, executor);
  kv_[at].Multiply(x.data(), d, rows, kv, ld, /*accumulate=*/false, executor);
  if (adapter_ != kNoAdapter) {
    AddDelta(adapters_->packed(adapter_).layers[at].qkv, w.q_dim(), x.data(), rows, kv, ld,
             executor);
  }
  if (!l.qkv_bias.empty()) {
    const float* bias = l.qkv_bias.data() + w.q_dim();
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < ld; ++i) kv[r * ld + i] += bias[i];
    }
  }
  for (std::int64_t h = 0; !l.k_norm.empty() && h < w.config.kv_heads; ++h) {
    float* head = kv + h * head_dim;
    RmsNorm(head, ld, l.k_norm.data(), w.rms_eps, rows, head_dim, head, ld, executor);
  }
}

}  // namespace baton
