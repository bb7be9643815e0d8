// GGUF metadata -> ModelConfig.
#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/weights/gguf.h"
#include "common/weights/model_config.h"
#include "common/weights/model_config_check.h"

namespace baton {
namespace {

// Keys of one architecture: Int("block_count") reads "llama.block_count".
class Keys {
 public:
  Keys(const GgufFile& file, std::string_view architecture)
      : file_(file), prefix_(Cat(architecture, ".")) {}

  std::string Name(std::string_view key) const { return Cat(prefix_, key); }
  bool Has(std::string_view key) const { return file_.Has(Cat(prefix_, key)); }
  absl::StatusOr<int64_t> Int(std::string_view key) const {
    return file_.GetInt(Cat(prefix_, key));
  }
  absl::StatusOr<int64_t> IntOr(std::string_view key, int64_t fallback) const {
    return Has(key) ? Int(key) : fallback;
  }
  absl::StatusOr<double> Float(std::string_view key) const {
    return file_.GetFloat(Cat(prefix_, key));
  }
  absl::StatusOr<double> FloatOr(std::string_view key, double fallback) const {
    return Has(key) ? Float(key) : fallback;
  }
  absl::StatusOr<std::string_view> Text(std::string_view key) const {
    return file_.GetString(Cat(prefix_, key));
  }

  // Unless the key is absent or 0.
  absl::Status Refuse(std::string_view key) const {
    BATON_ASSIGN_OR_RETURN(const int64_t value, IntOr(key, 0));
    if (value == 0) return absl::OkStatus();
    return absl::UnimplementedError(Cat("'", prefix_, key, "' is not supported"));
  }

 private:
  const GgufFile& file_;
  const std::string prefix_;
};

absl::Status ReadShape(const GgufFile& file, const Keys& keys, ModelConfig* config) {
  BATON_ASSIGN_OR_RETURN(config->layers, keys.Int("block_count"));
  BATON_ASSIGN_OR_RETURN(config->max_context, keys.Int("context_length"));
  BATON_ASSIGN_OR_RETURN(config->hidden, keys.Int("embedding_length"));
  BATON_ASSIGN_OR_RETURN(config->ffn, keys.Int("feed_forward_length"));
  BATON_ASSIGN_OR_RETURN(config->heads, keys.Int("attention.head_count"));
  BATON_ASSIGN_OR_RETURN(config->kv_heads, keys.IntOr("attention.head_count_kv", config->heads));
  BATON_ASSIGN_OR_RETURN(config->rms_eps, keys.Float("attention.layer_norm_rms_epsilon"));
  if (config->heads <= 0) {
    return absl::InvalidArgumentError(
        Cat("attention heads are ", config->heads, ", must be at least 1"));
  }
  BATON_ASSIGN_OR_RETURN(config->head_dim,
                         keys.IntOr("attention.key_length", config->hidden / config->heads));
  BATON_ASSIGN_OR_RETURN(const int64_t value_dim,
                         keys.IntOr("attention.value_length", config->head_dim));
  if (value_dim != config->head_dim) {
    return absl::UnimplementedError(Cat("value heads of size ", value_dim, " beside key heads of ",
                                        config->head_dim, " are not supported"));
  }
  const TensorView* embedding = file.Find("token_embd.weight");
  const int64_t rows = embedding != nullptr ? embedding->shape[0] : 0;
  BATON_ASSIGN_OR_RETURN(config->vocab, keys.IntOr("vocab_size", rows));
  if (config->vocab == 0 && file.Has("tokenizer.ggml.tokens")) {
    BATON_ASSIGN_OR_RETURN(config->vocab, file.GetArrayLength("tokenizer.ggml.tokens"));
  }
  return absl::OkStatus();
}

// llama.cpp's YaRN: on top of the attention factor of the paper comes `attn_factor`.
absl::Status ReadYarn(const Keys& keys, ModelConfig* config) {
  RopeConfig& rope = config->rope;
  for (const auto& [key, plain] : {std::pair("rope.scaling.yarn_ext_factor", 1.0),
                                   std::pair("rope.scaling.yarn_attn_factor", 1.0),
                                   std::pair("rope.scaling.yarn_log_multiplier", 0.0)}) {
    BATON_ASSIGN_OR_RETURN(const double value, keys.FloatOr(key, plain));
    if (value != plain) {
      return absl::UnimplementedError(Cat("'", keys.Name(key), "' ", value, " is not supported"));
    }
  }
  BATON_ASSIGN_OR_RETURN(rope.factor, keys.Float("rope.scaling.factor"));
  BATON_ASSIGN_OR_RETURN(rope.original_max_context,
                         keys.IntOr("rope.scaling.original_context_length", config->max_context));
  BATON_ASSIGN_OR_RETURN(rope.beta_fast, keys.FloatOr("rope.scaling.yarn_beta_fast", 32.0));
  BATON_ASSIGN_OR_RETURN(rope.beta_slow, keys.FloatOr("rope.scaling.yarn_beta_slow", 1.0));
  BATON_ASSIGN_OR_RETURN(const double factor, keys.FloatOr("rope.scaling.attn_factor", 1.0));
  rope.attention_factor = factor * YarnMscale(rope.factor, 1.0);
  ExtendContext(config);
  return absl::OkStatus();
}

// As llama.cpp reads it: a factor without a type is linear, also under its first name.
absl::Status ReadScaling(const Keys& keys, ModelConfig* config) {
  constexpr std::string_view kFactor = "rope.scaling.factor";
  constexpr std::string_view kOldFactor = "rope.scale_linear";
  const std::string_view factor = !keys.Has(kFactor) && keys.Has(kOldFactor) ? kOldFactor : kFactor;
  std::string_view type = keys.Has(factor) ? "linear" : "none";
  if (keys.Has("rope.scaling.type")) {
    BATON_ASSIGN_OR_RETURN(type, keys.Text("rope.scaling.type"));
  }
  if (type == "none") return absl::OkStatus();
  if (type == "yarn") {
    config->rope.scaling = RopeConfig::Scaling::kYarn;
    return ReadYarn(keys, config);
  }
  if (type != "linear") {
    return absl::UnimplementedError(Cat("rope.scaling.type '", type, "' is not supported"));
  }
  BATON_ASSIGN_OR_RETURN(const double value, keys.Float(factor));
  if (value == 0 || value == 1) return absl::OkStatus();  // 0: written for "none"
  config->rope.scaling = RopeConfig::Scaling::kLinear;
  config->rope.factor = value;
  return absl::OkStatus();
}

absl::Status ReadRope(const GgufFile& file, const Keys& keys, ModelConfig* config) {
  BATON_ASSIGN_OR_RETURN(config->rope.theta, keys.FloatOr("rope.freq_base", 10000.0));
  BATON_ASSIGN_OR_RETURN(const int64_t rotated,
                         keys.IntOr("rope.dimension_count", config->head_dim));
  if (rotated != config->head_dim) {
    return absl::UnimplementedError(
        Cat("RoPE over ", rotated, " of ", config->head_dim, " dimensions is not supported"));
  }
  BATON_RETURN_IF_ERROR(ReadScaling(keys, config));
  const TensorView* factors = file.Find("rope_freqs.weight");
  if (factors == nullptr) return absl::OkStatus();
  if (config->rope.scaling != RopeConfig::Scaling::kNone) {
    return absl::UnimplementedError("'rope_freqs.weight' beside rope.scaling is not supported");
  }
  const std::vector<int64_t> expected = {config->head_dim / 2};
  if (factors->dtype != StoredDType::kF32 || factors->shape != expected) {
    return absl::InvalidArgumentError(Cat("tensor 'rope_freqs.weight': expected F32 ",
                                          ShapeString(expected), ", is ", DTypeName(factors->dtype),
                                          " ", ShapeString(factors->shape)));
  }
  config->rope.freq_factors.resize(static_cast<size_t>(expected[0]));
  std::memcpy(config->rope.freq_factors.data(), factors->data, factors->nbytes);
  return absl::OkStatus();
}

// llama writes no pattern: its window, Mistral's, is in every layer. The others have to say which.
absl::Status ReadLayerPlan(const GgufFile& file, const Keys& keys, ModelConfig* config) {
  constexpr std::string_view kWindow = "attention.sliding_window";
  constexpr std::string_view kPattern = "attention.sliding_window_pattern";
  BATON_ASSIGN_OR_RETURN(const int64_t window, keys.IntOr(kWindow, 0));
  if (window == 0) return absl::OkStatus();
  std::vector<bool> windowed(static_cast<size_t>(config->layers), true);
  if (keys.Has(kPattern)) {
    BATON_ASSIGN_OR_RETURN(windowed, file.GetBoolArray(keys.Name(kPattern)));
    if (static_cast<int64_t>(windowed.size()) != config->layers) {
      return absl::InvalidArgumentError(Cat("'", keys.Name(kPattern), "' has ", windowed.size(),
                                            " entries, the model ", config->layers, " layers"));
    }
  } else if (config->architecture != "llama") {
    return absl::UnimplementedError(
        Cat("'", keys.Name(kWindow), "' without '", keys.Name(kPattern), "' is not supported"));
  }
  if (std::find(windowed.begin(), windowed.end(), true) == windowed.end()) {
    config->warnings.push_back(
        Cat("'", keys.Name(kWindow), "' ", window, " is not used: its pattern leaves it no layer"));
    return absl::OkStatus();
  }
  config->sliding_window = window;
  config->windowed_layers = std::move(windowed);
  return absl::OkStatus();
}

absl::Status ReadTokenIds(const GgufFile& file, ModelConfig* config) {
  const auto read = [&](const char* key) -> absl::StatusOr<int32_t> {
    BATON_ASSIGN_OR_RETURN(const int64_t id, file.GetInt(key));
    if (id < 0 || id >= config->vocab) {
      return absl::InvalidArgumentError(
          Cat("'", key, "' is ", id, ", must be 0 to ", config->vocab - 1));
    }
    return static_cast<int32_t>(id);
  };
  if (file.Has("tokenizer.ggml.bos_token_id")) {
    BATON_ASSIGN_OR_RETURN(config->bos_id, read("tokenizer.ggml.bos_token_id"));
  }
  // End of sequence, of a turn, of a message (before a tool answers): each ends a generation.
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    if (!file.Has(key)) continue;
    BATON_ASSIGN_OR_RETURN(const int32_t id, read(key));
    auto& ids = config->eos_ids;
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> Parse(const GgufFile& file) {
  BATON_ASSIGN_OR_RETURN(const std::string_view architecture,
                         file.GetString("general.architecture"));
  if (architecture != "llama" && architecture != "qwen2" && architecture != "qwen3") {
    return absl::UnimplementedError(
        Cat("general.architecture '", architecture, "' is not supported"));
  }
  ModelConfig config;
  config.architecture = std::string(architecture);
  const Keys keys(file, architecture);
  BATON_RETURN_IF_ERROR(keys.Refuse("expert_count"));
  BATON_RETURN_IF_ERROR(ReadShape(file, keys, &config));
  config.tie_embeddings = file.Find("output.weight") == nullptr;
  config.qk_norm = architecture == "qwen3";
  // Qwen2 has them by definition: a file without is missing tensors.
  config.qkv_bias = architecture == "qwen2" || file.Find("blk.0.attn_q.bias") != nullptr;
  config.attention_bias = file.Find("blk.0.attn_output.bias") != nullptr;
  BATON_RETURN_IF_ERROR(ReadRope(file, keys, &config));
  BATON_RETURN_IF_ERROR(ReadTokenIds(file, &config));
  BATON_RETURN_IF_ERROR(CheckModelConfig(config));  // before anything is sized by a number of it
  BATON_RETURN_IF_ERROR(ReadLayerPlan(file, keys, &config));
  BATON_RETURN_IF_ERROR(CheckModelConfig(config));
  return config;
}

}  // namespace

absl::StatusOr<ModelConfig> ParseGgufConfig(const GgufFile& file) {
  auto config = Parse(file);
  if (config.ok() || config.status().message().find(file.path()) != absl::string_view::npos) {
    return config;
  }
  return absl::Status(config.status().code(),
                      Cat(file.path(), ": ", StdView(config.status().message())));
}

}  // namespace baton
