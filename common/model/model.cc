#include "common/model/model.h"

#include <xxhash.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/model/model_weights.h"

namespace baton {
namespace {

std::string ServedDigest(const std::string& source_digest, DType dtype) {
  const std::string text = absl::StrCat(source_digest, "/", DTypeName(dtype));
  const XXH128_hash_t h = XXH3_128bits(text.data(), text.size());
  return absl::StrFormat("%016x%016x", h.high64, h.low64);
}

// The first failure of a parallel loop.
class FirstError {
 public:
  void Add(absl::Status status) {
    if (status.ok()) return;
    MutexLock lock(mu_);
    if (status_.ok()) status_ = std::move(status);
  }
  absl::Status Get() {
    MutexLock lock(mu_);
    return status_;
  }

 private:
  Mutex mu_;
  absl::Status status_ GUARDED_BY(mu_);
};

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

// Reads tensors into one scratch buffer and packs them, so that at most one (fused) matrix exists
// in fp32 beside the packed ones.
class Loader {
 public:
  Loader(const ModelSource& source, const ModelLoadOptions& options)
      : source_(source), options_(options) {
    for (const auto& [name, shape] : ExpectedTensors(source.config())) {
      total_ += Bytes(Elements(shape), shape.size());
    }
  }

  // The matrices `names` [rows_i, cols], one below the other.
  absl::StatusOr<PackedMatrix> Matrix(
      const std::vector<std::pair<std::string, std::int64_t>>& names, std::int64_t cols) {
    std::int64_t rows = 0;
    for (const auto& [name, r] : names) rows += r;
    scratch_.resize(std::max<std::size_t>(scratch_.size(), rows * cols));
    float* dst = scratch_.data();
    for (const auto& [name, r] : names) {
      FirstError error;
      options_.executor->ParallelFor(r, 64, [&, name = name](std::int64_t begin, std::int64_t end) {
        error.Add(source_.ReadRowsF32(name, begin, end - begin, dst + begin * cols));
      });
      BATON_RETURN_IF_ERROR(error.Get());
      dst += r * cols;
    }
    PackedMatrix packed =
        PackedMatrix::Pack(scratch_.data(), rows, cols, options_.weight_dtype, *options_.executor);
    bytes_ += packed.bytes();
    Done(Bytes(rows * cols, 2));
    return packed;
  }

  absl::StatusOr<std::vector<float>> Vector(const std::string& name, std::int64_t size) {
    std::vector<float> v(size);
    BATON_RETURN_IF_ERROR(source_.ReadTensorF32(name, {size}, v.data()));
    bytes_ += v.size() * sizeof(float);
    Done(Bytes(size, 1));
    return v;
  }

  std::size_t bytes() const { return bytes_; }

 private:
  static std::int64_t Elements(const std::vector<std::int64_t>& shape) {
    std::int64_t n = 1;
    for (std::int64_t d : shape) n *= d;
    return n;
  }
  // Vectors (norms, biases) stay fp32.
  std::int64_t Bytes(std::int64_t elements, std::size_t dims) const {
    return elements *
           static_cast<std::int64_t>(DTypeSize(dims == 1 ? DType::kF32 : options_.weight_dtype));
  }
  void Done(std::int64_t bytes) {
    done_ += bytes;
    if (options_.progress) options_.progress(done_, total_);
  }

  const ModelSource& source_;
  const ModelLoadOptions& options_;
  std::vector<float> scratch_;
  std::size_t bytes_ = 0;
  std::int64_t done_ = 0;
  std::int64_t total_ = 0;
};

absl::StatusOr<std::vector<float>> QkvBias(Loader& loader, const std::string& attention,
                                           std::int64_t q_dim, std::int64_t kv_dim) {
  BATON_ASSIGN_OR_RETURN(auto bias, loader.Vector(attention + "q_proj.bias", q_dim));
  BATON_ASSIGN_OR_RETURN(auto k, loader.Vector(attention + "k_proj.bias", kv_dim));
  BATON_ASSIGN_OR_RETURN(auto v, loader.Vector(attention + "v_proj.bias", kv_dim));
  bias.insert(bias.end(), k.begin(), k.end());
  bias.insert(bias.end(), v.begin(), v.end());
  return bias;
}

absl::StatusOr<LayerWeights> LoadLayer(Loader& loader, const Model::Weights& w, int layer) {
  const ModelConfig& c = w.config;
  const std::string prefix = absl::StrCat("model.layers.", layer, ".");
  const std::string attention = prefix + "self_attn.";
  const std::string mlp = prefix + "mlp.";
  LayerWeights l;
  l.window = static_cast<int>(c.WindowOf(layer));
  BATON_ASSIGN_OR_RETURN(l.input_norm, loader.Vector(prefix + "input_layernorm.weight", c.hidden));
  BATON_ASSIGN_OR_RETURN(l.qkv, loader.Matrix({{attention + "q_proj.weight", w.q_dim()},
                                               {attention + "k_proj.weight", w.kv_dim()},
                                               {attention + "v_proj.weight", w.kv_dim()}},
                                              c.hidden));
  if (c.qkv_bias || c.attention_bias) {
    BATON_ASSIGN_OR_RETURN(l.qkv_bias, QkvBias(loader, attention, w.q_dim(), w.kv_dim()));
  }
  if (c.qk_norm) {
    BATON_ASSIGN_OR_RETURN(l.q_norm, loader.Vector(attention + "q_norm.weight", c.head_dim));
    BATON_ASSIGN_OR_RETURN(l.k_norm, loader.Vector(attention + "k_norm.weight", c.head_dim));
  }
  BATON_ASSIGN_OR_RETURN(l.o, loader.Matrix({{attention + "o_proj.weight", c.hidden}}, w.q_dim()));
  if (c.attention_bias) {
    BATON_ASSIGN_OR_RETURN(l.o_bias, loader.Vector(attention + "o_proj.bias", c.hidden));
  }
  BATON_ASSIGN_OR_RETURN(l.post_attention_norm,
                         loader.Vector(prefix + "post_attention_layernorm.weight", c.hidden));
  BATON_ASSIGN_OR_RETURN(
      l.gate_up, loader.Matrix({{mlp + "gate_proj.weight", c.ffn}, {mlp + "up_proj.weight", c.ffn}},
                               c.hidden));
  BATON_ASSIGN_OR_RETURN(l.down, loader.Matrix({{mlp + "down_proj.weight", c.hidden}}, c.ffn));
  return l;
}

}  // namespace

Model::Model(std::unique_ptr<Weights> weights) : weights_(std::move(weights)) {}
Model::~Model() = default;

const ModelConfig& Model::config() const { return weights_->config; }
DType Model::weight_dtype() const { return weights_->dtype; }
const std::string& Model::served_digest() const { return weights_->served_digest; }
std::size_t Model::weight_bytes() const { return weights_->bytes; }
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
  w->served_digest =
      ServedDigest(source.WeightsDigest(options.executor->threads()), options.weight_dtype);
  w->attention = {.q_heads = static_cast<int>(c.heads),
                  .kv_heads = static_cast<int>(c.kv_heads),
                  .head_dim = static_cast<int>(c.head_dim),
                  .scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim)),
                  .window = 0};
  w->rms_eps = static_cast<float>(c.rms_eps);
  w->inv_freq = RopeInverseFrequencies(c);

  Loader loader(source, options);
  for (int layer = 0; layer < c.layers; ++layer) {
    BATON_ASSIGN_OR_RETURN(LayerWeights l, LoadLayer(loader, *w, layer));
    w->layers.push_back(std::move(l));
  }
  BATON_ASSIGN_OR_RETURN(w->final_norm, loader.Vector("model.norm.weight", c.hidden));
  BATON_ASSIGN_OR_RETURN(w->embedding,
                         loader.Matrix({{"model.embed_tokens.weight", c.vocab}}, c.hidden));
  w->head = w->embedding;
  if (!c.tie_embeddings) {
    BATON_ASSIGN_OR_RETURN(w->head, loader.Matrix({{"lm_head.weight", c.vocab}}, c.hidden));
  }
  w->bytes = loader.bytes();
  return std::shared_ptr<const Model>(new Model(std::move(w)));
}

}  // namespace baton
