#include "common/model/model.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status_macros.h"
#include "common/model/model_weights.h"
#include "common/model/weight_loader.h"

namespace baton {
namespace {

std::string ServedDigest(const std::string& source_digest, WeightDType dtype) {
  const WeightDType values = dtype == WeightDType::kFile ? WeightDType::kF32 : dtype;
  const std::string text = absl::StrCat(source_digest, "/", WeightDTypeName(values));
  const XXH128_hash_t h = XXH3_128bits(text.data(), text.size());
  return absl::StrFormat("%016x%016x", h.high64, h.low64);
}

absl::Status CheckShapes(const ModelSource& source) {
  for (const auto& [name, shape] : ExpectedTensors(source.config())) {
    BATON_ASSIGN_OR_RETURN(SourceTensor tensor, source.GetTensor(name));
    if (tensor.view->shape != shape) {
      return absl::InvalidArgumentError(absl::StrCat(*tensor.file, ": tensor ", name, " has shape ",
                                                     ShapeString(tensor.view->shape),
                                                     ", the config asks for ", ShapeString(shape)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> QkvBias(WeightLoader& loader, const std::string& attention,
                                           std::int64_t q_dim, std::int64_t kv_dim) {
  BATON_ASSIGN_OR_RETURN(auto bias, loader.Vector(attention + "q_proj.bias", q_dim));
  BATON_ASSIGN_OR_RETURN(auto k, loader.Vector(attention + "k_proj.bias", kv_dim));
  BATON_ASSIGN_OR_RETURN(auto v, loader.Vector(attention + "v_proj.bias", kv_dim));
  bias.insert(bias.end(), k.begin(), k.end());
  bias.insert(bias.end(), v.begin(), v.end());
  return bias;
}

// Into `l`, which stays in its place: the loader fills the matrices when it comes to them.
absl::Status LoadLayer(WeightLoader& loader, const Model::Weights& w, int layer, LayerWeights& l) {
  const ModelConfig& c = w.config;
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  l.window = static_cast<int>(c.WindowOf(layer));
  BATON_ASSIGN_OR_RETURN(l.input_norm, loader.Vector(prefix + "input_layernorm.weight", c.hidden));
  loader.Matrix({{attention + "q_proj.weight", w.q_dim()},
                 {attention + "k_proj.weight", w.kv_dim()},
                 {attention + "v_proj.weight", w.kv_dim()}},
                c.hidden, l.qkv);
  if (c.qkv_bias || c.attention_bias) {
    BATON_ASSIGN_OR_RETURN(l.qkv_bias, QkvBias(loader, attention, w.q_dim(), w.kv_dim()));
  }
  if (c.qk_norm) {
    BATON_ASSIGN_OR_RETURN(l.q_norm, loader.Vector(attention + "q_norm.weight", c.head_dim));
    BATON_ASSIGN_OR_RETURN(l.k_norm, loader.Vector(attention + "k_norm.weight", c.head_dim));
  }
  loader.Matrix({{attention + "o_proj.weight", c.hidden}}, w.q_dim(), l.o);
  if (c.attention_bias) {
    BATON_ASSIGN_OR_RETURN(l.o_bias, loader.Vector(attention + "o_proj.bias", c.hidden));
  }
  BATON_ASSIGN_OR_RETURN(l.post_attention_norm,
                         loader.Vector(prefix + "post_attention_layernorm.weight", c.hidden));
  loader.Matrix({{mlp + "gate_proj.weight", c.ffn}, {mlp + "up_proj.weight", c.ffn}}, c.hidden,
                l.gate_up);
  loader.Matrix({{mlp + "down_proj.weight", c.hidden}}, c.ffn, l.down);
  return loader.EndBatch();
}

}  // namespace

Model::Model(std::unique_ptr<Weights> weights) : weights_(std::move(weights)) {}
Model::~Model() = default;

const ModelConfig& Model::config() const { return weights_->config; }
WeightDType Model::weight_dtype() const { return weights_->dtype; }
const std::string& Model::served_digest() const { return weights_->served_digest; }
const std::string& Model::content_digest() const { return weights_->content_digest; }
std::size_t Model::weight_bytes() const { return weights_->bytes; }
std::size_t Model::own_weight_bytes() const { return weights_->own_bytes; }
const Model::Weights& Model::weights() const { return *weights_; }

absl::StatusOr<std::shared_ptr<const Model>> Model::Load(const ModelSource& source,
                                                         const ModelLoadOptions& options) {
  const ModelConfig& c = source.config();
  BATON_RETURN_IF_ERROR(CheckRunnable(c));
  if (c.head_dim % 8 != 0 || c.head_dim > 256) {
    return absl::UnimplementedError(absl::StrCat(source.path(), ": head_dim ", c.head_dim,
                                                 "; it must be a multiple of 8, at most 256"));
  }
  BATON_RETURN_IF_ERROR(CheckShapes(source));

  auto w = std::make_unique<Weights>();
  w->config = c;
  w->dtype = options.weight_dtype;
  w->attention = {.q_heads = static_cast<int>(c.heads),
                  .kv_heads = static_cast<int>(c.kv_heads),
                  .head_dim = static_cast<int>(c.head_dim),
                  .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
                  .window = 0};
  w->rms_eps = static_cast<float>(c.rms_eps);
  w->inv_freq = RopeInverseFrequencies(c);

  WeightLoader loader(source, options);
  w->layers.resize(static_cast<std::size_t>(c.layers));
  for (int layer = 0; layer < c.layers; ++layer) {
    BATON_RETURN_IF_ERROR(LoadLayer(loader, *w, layer, w->layers[layer]));
  }
  BATON_ASSIGN_OR_RETURN(w->final_norm, loader.Vector("model.norm.weight", c.hidden));
  loader.Matrix({{"model.embed_tokens.weight", c.vocab}}, c.hidden, w->embedding);
  if (!c.tie_embeddings) loader.Matrix({{"lm_head.weight", c.vocab}}, c.hidden, w->head);
  BATON_RETURN_IF_ERROR(loader.Finish());
  if (c.tie_embeddings) w->head = w->embedding;
  w->content_digest = source.WeightsDigest(options.executor->threads(), loader.hashes());
  w->served_digest = ServedDigest(w->content_digest, options.weight_dtype);
  w->bytes = static_cast<std::size_t>(loader.bytes());
  w->own_bytes = static_cast<std::size_t>(loader.own_bytes());
  return std::shared_ptr<const Model>(new Model(std::move(w)));
}

}  // namespace baton
