// config.json and generation_config.json -> ModelConfig.
#include <array>
#include <cmath>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/weights/model_config.h"
#include "common/weights/model_config_check.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

using Json = nlohmann::json;

absl::Status Bad(std::string_view what) {
  return absl::InvalidArgumentError(Cat("config.json: ", what));
}

absl::Status Unsupported(std::string_view what) {
  return absl::UnimplementedError(Cat("config.json: ", what, " is not supported"));
}

// The value of `key`; null when absent.
const Json& At(const Json& object, const char* key) {
  static const Json null;
  const auto it = object.find(key);
  return it == object.end() ? null : *it;
}

absl::StatusOr<int64_t> Int(const Json& object, const char* key) {
  const Json& value = At(object, key);
  if (value.is_null()) return Bad(Cat("no '", key, "'"));
  if (value.is_number_unsigned() && value.get<uint64_t>() > uint64_t{1} << 62) {
    return Bad(Cat("'", key, "' is ", value.dump(), ", far too large"));
  }
  if (!value.is_number_integer()) return Bad(Cat("'", key, "' must be an integer"));
  return value.get<int64_t>();
}

absl::StatusOr<int64_t> IntOr(const Json& object, const char* key, int64_t fallback) {
  if (At(object, key).is_null()) return fallback;
  return Int(object, key);
}

absl::StatusOr<double> NumberOr(const Json& object, const char* key, double fallback) {
  const Json& value = At(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_number()) return Bad(Cat("'", key, "' must be a number"));
  return value.get<double>();
}

absl::StatusOr<bool> BoolOr(const Json& object, const char* key, bool fallback) {
  const Json& value = At(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) return Bad(Cat("'", key, "' must be true or false"));
  return value.get<bool>();
}

absl::StatusOr<std::string> TextOr(const Json& object, const char* key, const char* fallback) {
  const Json& value = At(object, key);
  if (value.is_null()) return std::string(fallback);
  if (!value.is_string()) return Bad(Cat("'", key, "' must be a string"));
  return value.get<std::string>();
}

absl::StatusOr<std::string> ReadArchitecture(const Json& root) {
  constexpr std::array<std::array<const char*, 2>, 4> kKnown = {{
      {"llama", "LlamaForCausalLM"},
      {"mistral", "MistralForCausalLM"},
      {"qwen2", "Qwen2ForCausalLM"},
      {"qwen3", "Qwen3ForCausalLM"},
  }};
  for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
    if (!At(root, key).is_null()) {
      return Unsupported(Cat("a mixture of experts ('", key, "')"));
    }
  }
  BATON_ASSIGN_OR_RETURN(const std::string type, TextOr(root, "model_type", ""));
  const Json& list = At(root, "architectures");
  std::string name;
  if (list.is_array() && list.size() == 1 && list[0].is_string()) {
    name = list[0].get<std::string>();
  } else if (!list.is_null()) {
    return Bad("'architectures' must be a list of one name");
  }
  for (const auto& [known_type, known_name] : kKnown) {
    if (type == known_type && (name.empty() || name == known_name)) return type;
  }
  return Unsupported(
      Cat("architecture '", name.empty() ? type : name, "' (model_type '", type, "')"));
}

// `rope_scaling`, or `rope_parameters` of Transformers 5, which also holds the theta.
absl::Status ReadRope(const Json& root, ModelConfig* config) {
  const Json& parameters = At(root, "rope_parameters");
  const Json& scaling = parameters.is_null() ? At(root, "rope_scaling") : parameters;
  BATON_ASSIGN_OR_RETURN(config->rope.theta, NumberOr(root, "rope_theta", 10000.0));
  BATON_ASSIGN_OR_RETURN(const double partial, NumberOr(root, "partial_rotary_factor", 1.0));
  if (partial != 1.0) return Unsupported("'partial_rotary_factor'");
  BATON_ASSIGN_OR_RETURN(const bool interleaved, BoolOr(root, "rope_interleaved", false));
  if (interleaved) return Unsupported("'rope_interleaved'");
  if (scaling.is_null()) return absl::OkStatus();
  if (!scaling.is_object()) return Bad("'rope_scaling' must be an object");
  BATON_ASSIGN_OR_RETURN(config->rope.theta, NumberOr(scaling, "rope_theta", config->rope.theta));
  BATON_ASSIGN_OR_RETURN(std::string type, TextOr(scaling, "rope_type", ""));
  if (type.empty()) {
    BATON_ASSIGN_OR_RETURN(type, TextOr(scaling, "type", "default"));
  }
  if (type == "default") return absl::OkStatus();
  if (type != "linear" && type != "llama3") return Unsupported(Cat("rope_type '", type, "'"));
  if (At(scaling, "factor").is_null()) return Bad("'rope_scaling' has no 'factor'");
  BATON_ASSIGN_OR_RETURN(config->rope.factor, NumberOr(scaling, "factor", 1.0));
  config->rope.scaling = RopeConfig::Scaling::kLinear;
  if (type == "linear") return absl::OkStatus();
  config->rope.scaling = RopeConfig::Scaling::kLlama3;
  for (const char* key : {"low_freq_factor", "high_freq_factor"}) {
    if (At(scaling, key).is_null()) return Bad(Cat("'rope_scaling' has no '", key, "'"));
  }
  BATON_ASSIGN_OR_RETURN(config->rope.low_freq_factor, NumberOr(scaling, "low_freq_factor", 1));
  BATON_ASSIGN_OR_RETURN(config->rope.high_freq_factor, NumberOr(scaling, "high_freq_factor", 4));
  BATON_ASSIGN_OR_RETURN(config->rope.original_max_context,
                         Int(scaling, "original_max_position_embeddings"));
  return absl::OkStatus();
}

absl::Status ReadSlidingWindow(const Json& root, ModelConfig* config) {
  const Json& window = At(root, "sliding_window");
  if (window.is_null()) return absl::OkStatus();
  // Qwen ships a window that is switched off; Mistral's is on when it is there; Llama has none.
  BATON_ASSIGN_OR_RETURN(const bool on,
                         BoolOr(root, "use_sliding_window", config->architecture == "mistral"));
  BATON_ASSIGN_OR_RETURN(const int64_t size, Int(root, "sliding_window"));
  if (on) config->sliding_window = size;
  return absl::OkStatus();
}

absl::Status ReadTokenIds(const Json& value, const char* key, std::vector<int32_t>* ids) {
  const Json list = value.is_array() ? value : Json::array({value});
  for (const Json& id : list) {
    if (!id.is_number_integer() || id < 0 || id > INT32_MAX) {
      return Bad(Cat("'", key, "' must be a token id or a list of them"));
    }
    ids->push_back(id.get<int32_t>());
  }
  return absl::OkStatus();
}

absl::Status ReadEndTokens(const Json& root, std::string_view generation_config_json,
                           ModelConfig* config) {
  std::vector<int32_t> bos;
  if (const Json& value = At(root, "bos_token_id"); !value.is_null()) {
    BATON_RETURN_IF_ERROR(ReadTokenIds(value, "bos_token_id", &bos));
    if (!bos.empty()) config->bos_id = bos[0];
  }
  if (!generation_config_json.empty()) {
    const Json generation =
        Json::parse(generation_config_json, nullptr, /*allow_exceptions=*/false);
    if (!generation.is_object()) {
      return absl::InvalidArgumentError("generation_config.json: not a JSON object");
    }
    if (const Json& value = At(generation, "eos_token_id"); !value.is_null()) {
      return ReadTokenIds(value, "generation_config eos_token_id", &config->eos_ids);
    }
  }
  if (const Json& value = At(root, "eos_token_id"); !value.is_null()) {
    return ReadTokenIds(value, "eos_token_id", &config->eos_ids);
  }
  return absl::OkStatus();
}

absl::Status ReadShape(const Json& root, ModelConfig* config) {
  BATON_ASSIGN_OR_RETURN(config->layers, Int(root, "num_hidden_layers"));
  BATON_ASSIGN_OR_RETURN(config->hidden, Int(root, "hidden_size"));
  BATON_ASSIGN_OR_RETURN(config->heads, Int(root, "num_attention_heads"));
  BATON_ASSIGN_OR_RETURN(config->kv_heads, IntOr(root, "num_key_value_heads", config->heads));
  BATON_ASSIGN_OR_RETURN(config->head_dim, IntOr(root, "head_dim", 0));
  if (At(root, "head_dim").is_null()) {
    if (config->heads <= 0 || config->hidden % config->heads != 0) {
      return Bad(Cat("'hidden_size' ", config->hidden, " is not a multiple of the ", config->heads,
                     " heads and 'head_dim' is absent"));
    }
    config->head_dim = config->hidden / config->heads;
  }
  BATON_ASSIGN_OR_RETURN(config->ffn, Int(root, "intermediate_size"));
  BATON_ASSIGN_OR_RETURN(config->vocab, Int(root, "vocab_size"));
  BATON_ASSIGN_OR_RETURN(config->max_context, Int(root, "max_position_embeddings"));
  BATON_ASSIGN_OR_RETURN(config->rms_eps, NumberOr(root, "rms_norm_eps", 1e-6));
  return absl::OkStatus();
}

absl::Status ReadFeatures(const Json& root, ModelConfig* config) {
  BATON_ASSIGN_OR_RETURN(config->tie_embeddings, BoolOr(root, "tie_word_embeddings", false));
  BATON_ASSIGN_OR_RETURN(config->attention_bias, BoolOr(root, "attention_bias", false));
  config->qkv_bias = config->attention_bias || config->architecture == "qwen2";
  config->qk_norm = config->architecture == "qwen3";
  BATON_ASSIGN_OR_RETURN(const bool mlp_bias, BoolOr(root, "mlp_bias", false));
  if (mlp_bias) return Unsupported("'mlp_bias'");
  BATON_ASSIGN_OR_RETURN(config->hidden_act, TextOr(root, "hidden_act", "silu"));
  if (config->hidden_act != "silu") {
    return Unsupported(Cat("hidden_act '", config->hidden_act, "'"));
  }
  if (const Json& quantization = At(root, "quantization_config"); !quantization.is_null()) {
    const Json method = quantization.is_object() ? At(quantization, "quant_method") : Json();
    return Unsupported(Cat("'quantization_config' (", method.dump(), ")"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ModelConfig> Parse(std::string_view config_json,
                                  std::string_view generation_config_json) {
  const Json root = Json::parse(config_json, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return Bad("not a JSON object");
  ModelConfig config;
  BATON_ASSIGN_OR_RETURN(config.architecture, ReadArchitecture(root));
  BATON_RETURN_IF_ERROR(ReadShape(root, &config));
  BATON_RETURN_IF_ERROR(ReadFeatures(root, &config));
  BATON_RETURN_IF_ERROR(ReadRope(root, &config));
  BATON_RETURN_IF_ERROR(ReadSlidingWindow(root, &config));
  BATON_RETURN_IF_ERROR(ReadEndTokens(root, generation_config_json, &config));
  if (absl::Status status = CheckModelConfig(config); !status.ok()) {
    return Bad(StdView(status.message()));
  }
  return config;
}

}  // namespace

absl::StatusOr<ModelConfig> ParseHfConfig(std::string_view config_json,
                                          std::string_view generation_config_json) {
  try {
    return Parse(config_json, generation_config_json);
  } catch (const std::exception& e) {
    return Bad(e.what());
  }
}

}  // namespace baton
