#include "common/scd/calibrate/differentiable_model.h"

#include <ATen/ATen.h>

#include <cmath>
#include <limits>

#include "common/model/model_weights.h"
#include "common/scd/calibrate/tensors.h"

namespace baton {
namespace {

// Undefined for an empty vector.
at::Tensor Vector(const std::vector<float>& values) {
  if (values.empty()) return {};
  return at::tensor(at::ArrayRef<float>(values), at::kFloat);
}

at::Tensor RmsNorm(const at::Tensor& x, const at::Tensor& gamma, double eps) {
  return x * at::rsqrt(x.square().mean(-1, /*keepdim=*/true) + eps) * gamma;
}

}  // namespace

struct DifferentiableModel::Weights {
  struct Layer {
    at::Tensor input_norm, qkv, qkv_bias, q_norm, k_norm, o, o_bias, mlp_norm, gate_up, down;
    std::int64_t window = 0;
  };
  std::int64_t heads = 0, kv_heads = 0, head_dim = 0;
  double eps = 0;
  double rope_scale = 1;
  at::Tensor inv_freq, embedding, head, final_norm;
  std::vector<Layer> layers;

  explicit Weights(const ProbedModel& of);

  at::Tensor Linear(const at::Tensor& x, const at::Tensor& w, const at::Tensor& bias) const {
    const at::Tensor y = at::mm(x, w.t());
    return bias.defined() ? y + bias : y;
  }
  // [rows, heads * head_dim] as [heads, rows, head_dim].
  at::Tensor Split(const at::Tensor& x, std::int64_t count) const {
    return x.reshape({x.size(0), count, head_dim}).transpose(0, 1);
  }
  // x [heads, rows, head_dim] at positions first, first + 1, ...: HF's half-split form.
  at::Tensor Rotate(const at::Tensor& x, std::int64_t first) const {
    const std::int64_t rows = x.size(1);
    const at::Tensor positions = at::arange(first, first + rows, at::kFloat);
    const at::Tensor angle = at::outer(positions, inv_freq);
    const at::Tensor cos = at::cos(angle) * rope_scale;
    const at::Tensor sin = at::sin(angle) * rope_scale;
    const auto halves = x.chunk(2, -1);
    return at::cat({halves[0] * cos - halves[1] * sin, halves[1] * cos + halves[0] * sin}, -1);
  }
  // 0 where query i (of `rows`, the last of `total`) sees a row, else -inf: [rows, total].
  static at::Tensor Mask(std::int64_t rows, std::int64_t total, std::int64_t window) {
    const at::Tensor q = at::arange(total - rows, total, at::kLong).unsqueeze(1);
    const at::Tensor k = at::arange(total, at::kLong).unsqueeze(0);
    at::Tensor hidden = k > q;
    if (window > 0) hidden = hidden.logical_or(k <= q - window);
    return at::zeros({rows, total}, at::kFloat)
        .masked_fill(hidden, -std::numeric_limits<float>::infinity());
  }
  at::Tensor Attend(const Layer& l, const at::Tensor& x, const at::Tensor& past) const {
    const std::int64_t q_dim = heads * head_dim, kv_dim = kv_heads * head_dim;
    const std::int64_t before = past.size(0), rows = x.size(0);
    const at::Tensor qkv = Linear(x, l.qkv, l.qkv_bias);
    at::Tensor q = Split(qkv.slice(1, 0, q_dim), heads);
    at::Tensor k = Split(qkv.slice(1, q_dim, q_dim + kv_dim), kv_heads);
    const at::Tensor v = Split(qkv.slice(1, q_dim + kv_dim), kv_heads);
    if (l.q_norm.defined()) q = RmsNorm(q, l.q_norm, eps);
    if (l.k_norm.defined()) k = RmsNorm(k, l.k_norm, eps);
    q = Rotate(q, before);
    k = Rotate(at::cat({Split(past.slice(1, 0, kv_dim), kv_heads), k}, 1), 0);
    const at::Tensor values = at::cat({Split(past.slice(1, kv_dim), kv_heads), v}, 1);
    const std::int64_t group = heads / kv_heads;
    const at::Tensor scores =
        at::matmul(q.reshape({kv_heads, group * rows, head_dim}), k.transpose(1, 2))
                .reshape({heads, rows, before + rows}) /
            std::sqrt(static_cast<double>(head_dim)) +
        Mask(rows, before + rows, l.window);
    const at::Tensor out = at::matmul(
        at::softmax(scores, -1).reshape({kv_heads, group * rows, before + rows}), values);
    return Linear(out.reshape({heads, rows, head_dim}).transpose(0, 1).reshape({rows, q_dim}), l.o,
                  l.o_bias);
  }
  at::Tensor Mlp(const Layer& l, const at::Tensor& x) const {
    const auto halves = at::mm(x, l.gate_up.t()).chunk(2, -1);
    return at::mm(at::silu(halves[0]) * halves[1], l.down.t());
  }
};

DifferentiableModel::Weights::Weights(const ProbedModel& of) {
  const Model::Weights& w = of.model->weights();
  heads = w.config.heads;
  kv_heads = w.config.kv_heads;
  head_dim = w.config.head_dim;
  eps = w.rms_eps;
  rope_scale = w.config.rope.attention_factor;
  inv_freq = Vector(w.inv_freq);
  embedding = Unpack(w.embedding);
  head = w.config.tie_embeddings ? embedding : Unpack(w.head);
  final_norm = Vector(w.final_norm);
  const AdapterSet::Packed* adapter =
      of.adapter == kNoAdapter ? nullptr : &of.adapters->packed(of.adapter);
  for (std::size_t i = 0; i < w.layers.size(); ++i) {
    const LayerWeights& from = w.layers[i];
    const auto delta = [&](LoraDelta AdapterSet::Packed::Layer::*part) {
      return adapter == nullptr ? nullptr : &(adapter->layers[i].*part);
    };
    layers.push_back({.input_norm = Vector(from.input_norm),
                      .qkv = Unpack(from.qkv, delta(&AdapterSet::Packed::Layer::qkv)),
                      .qkv_bias = Vector(from.qkv_bias),
                      .q_norm = Vector(from.q_norm),
                      .k_norm = Vector(from.k_norm),
                      .o = Unpack(from.o, delta(&AdapterSet::Packed::Layer::o)),
                      .o_bias = Vector(from.o_bias),
                      .mlp_norm = Vector(from.post_attention_norm),
                      .gate_up = Unpack(from.gate_up, delta(&AdapterSet::Packed::Layer::gate_up)),
                      .down = Unpack(from.down, delta(&AdapterSet::Packed::Layer::down)),
                      .window = from.window});
  }
}

DifferentiableModel::DifferentiableModel(const ProbedModel& model)
    : weights_(std::make_unique<const Weights>(model)) {}
DifferentiableModel::~DifferentiableModel() = default;

at::Tensor DifferentiableModel::KvOf(std::size_t layer, const at::Tensor& inputs) const {
  const Weights& w = *weights_;
  const Weights::Layer& l = w.layers[layer];
  const std::int64_t q_dim = w.heads * w.head_dim, kv_dim = w.kv_heads * w.head_dim;
  const at::Tensor bias = l.qkv_bias.defined() ? l.qkv_bias.slice(0, q_dim) : at::Tensor();
  const at::Tensor kv = w.Linear(RmsNorm(inputs, l.input_norm, w.eps), l.qkv.slice(0, q_dim), bias);
  if (!l.k_norm.defined()) return kv;
  const at::Tensor k =
      RmsNorm(kv.slice(1, 0, kv_dim).reshape({-1, w.kv_heads, w.head_dim}), l.k_norm, w.eps);
  return at::cat({k.reshape({-1, kv_dim}), kv.slice(1, kv_dim)}, 1);
}

at::Tensor DifferentiableModel::Logits(absl::Span<const std::int32_t> tokens,
                                       const std::vector<at::Tensor>& past) const {
  const Weights& w = *weights_;
  const at::Tensor ids =
      at::tensor(at::ArrayRef<std::int32_t>(tokens.data(), tokens.size()), at::kInt);
  at::Tensor h = at::embedding(w.embedding, ids);
  for (std::size_t i = 0; i < w.layers.size(); ++i) {
    const Weights::Layer& l = w.layers[i];
    h = h + w.Attend(l, RmsNorm(h, l.input_norm, w.eps), past[i]);
    h = h + w.Mlp(l, RmsNorm(h, l.mlp_norm, w.eps));
  }
  return at::mm(RmsNorm(h, w.final_norm, w.eps), w.head.t());
}

}  // namespace baton
