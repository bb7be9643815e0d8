// config.json and generation_config.json -> ModelConfig.
#include <algorithm>
#include <array>
#include <optional>
#include <utility>

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

// `rope_scaling`, or `rope_parameters` of Transformers 5; either may hold the theta. As there, an
// old `rope_scaling` that says something comes first.
absl::StatusOr<const Json*> RopeFields(const Json& root) {
  static const Json kNone = Json::object();
  const Json& old = At(root, "rope_scaling");
  const char* key = old.is_null() || old.empty() ? "rope_parameters" : "rope_scaling";
  const Json& fields = At(root, key);
  if (fields.is_null()) return &kNone;
  if (!fields.is_object()) return Bad(Cat("'", key, "' must be an object"));
  for (const auto& [name, value] : fields.items()) {
    if (value.is_object()) return Unsupported(Cat("'", key, "' by layer type ('", name, "')"));
  }
  return &fields;
}

absl::Status ReadLlama3(const Json& fields, RopeConfig* rope) {
  for (const char* key : {"low_freq_factor", "high_freq_factor"}) {
    if (At(fields, key).is_null()) return Bad(Cat("'rope_scaling' has no '", key, "'"));
  }
  BATON_ASSIGN_OR_RETURN(rope->low_freq_factor, NumberOr(fields, "low_freq_factor", 1));
  BATON_ASSIGN_OR_RETURN(rope->high_freq_factor, NumberOr(fields, "high_freq_factor", 4));
  BATON_ASSIGN_OR_RETURN(rope->original_max_context,
                         Int(fields, "original_max_position_embeddings"));
  return absl::OkStatus();
}

// The defaults are those of `_compute_yarn_parameters`, where 0 means absent, too.
absl::Status ReadYarn(const Json& root, const Json& fields, ModelConfig* config) {
  constexpr const char* kOriginal = "original_max_position_embeddings";
  RopeConfig& rope = config->rope;
  const Json& where = At(root, kOriginal).is_null() ? fields : root;
  BATON_ASSIGN_OR_RETURN(rope.original_max_context, IntOr(where, kOriginal, config->max_context));
  if (rope.original_max_context < 1) {
    return Bad(Cat("'", kOriginal, "' is ", rope.original_max_context, ", must be at least 1"));
  }
  const double ratio =
      static_cast<double>(config->max_context) / static_cast<double>(rope.original_max_context);
  BATON_ASSIGN_OR_RETURN(rope.factor, NumberOr(fields, "factor", ratio));
  BATON_ASSIGN_OR_RETURN(const double fast, NumberOr(fields, "beta_fast", 0));
  BATON_ASSIGN_OR_RETURN(const double slow, NumberOr(fields, "beta_slow", 0));
  if (fast != 0) rope.beta_fast = fast;
  if (slow != 0) rope.beta_slow = slow;
  BATON_ASSIGN_OR_RETURN(rope.truncate, BoolOr(fields, "truncate", true));
  BATON_ASSIGN_OR_RETURN(const double mscale, NumberOr(fields, "mscale", 0));
  BATON_ASSIGN_OR_RETURN(const double all_dim, NumberOr(fields, "mscale_all_dim", 0));
  const double derived = mscale != 0 && all_dim != 0
                             ? YarnMscale(rope.factor, mscale) / YarnMscale(rope.factor, all_dim)
                             : YarnMscale(rope.factor, 1.0);
  BATON_ASSIGN_OR_RETURN(rope.attention_factor, NumberOr(fields, "attention_factor", derived));
  ExtendContext(config);
  return absl::OkStatus();
}

absl::Status ReadRope(const Json& root, ModelConfig* config) {
  BATON_ASSIGN_OR_RETURN(const Json* found, RopeFields(root));
  const Json& fields = *found;
  BATON_ASSIGN_OR_RETURN(const double theta, NumberOr(root, "rope_theta", 10000.0));
  BATON_ASSIGN_OR_RETURN(config->rope.theta, NumberOr(fields, "rope_theta", theta));
  for (const Json* object : {&root, &fields}) {
    BATON_ASSIGN_OR_RETURN(const double partial, NumberOr(*object, "partial_rotary_factor", 1.0));
    if (partial != 1.0) return Unsupported("'partial_rotary_factor'");
  }
  BATON_ASSIGN_OR_RETURN(const bool interleaved, BoolOr(root, "rope_interleaved", false));
  if (interleaved) return Unsupported("'rope_interleaved'");
  BATON_ASSIGN_OR_RETURN(std::string type, TextOr(fields, "rope_type", ""));
  if (type.empty()) {
    BATON_ASSIGN_OR_RETURN(type, TextOr(fields, "type", "default"));
  }
  if (type == "default") return absl::OkStatus();
  if (type == "yarn") {
    config->rope.scaling = RopeConfig::Scaling::kYarn;
    return ReadYarn(root, fields, config);
  }
  // Also refused: "dynamic" and "longrope", whose frequencies change as a sequence grows, under
  // the keys that are cached already.
  if (type != "linear" && type != "llama3") return Unsupported(Cat("rope_type '", type, "'"));
  if (At(fields, "factor").is_null()) return Bad("'rope_scaling' has no 'factor'");
  BATON_ASSIGN_OR_RETURN(config->rope.factor, NumberOr(fields, "factor", 1.0));
  config->rope.scaling = RopeConfig::Scaling::kLinear;
  if (type == "linear") return absl::OkStatus();
  config->rope.scaling = RopeConfig::Scaling::kLlama3;
  return ReadLlama3(fields, &config->rope);
}

// Which layers have a window by `layer_types`; nullopt when it is absent.
absl::StatusOr<std::optional<std::vector<bool>>> ReadLayerTypes(const Json& root, int64_t layers) {
  const Json& types = At(root, "layer_types");
  if (types.is_null()) return std::optional<std::vector<bool>>();
  if (!types.is_array() || static_cast<int64_t>(types.size()) != layers) {
    return Bad(Cat("'layer_types' must be a list of ", layers, " names, one for each layer"));
  }
  std::vector<bool> windowed;
  for (const Json& type : types) {
    if (type != "full_attention" && type != "sliding_attention") {
      return Unsupported(Cat("a layer of type ", type.dump(), " ('layer_types')"));
    }
    windowed.push_back(type == "sliding_attention");
  }
  return std::optional(std::move(windowed));
}

// Whether the family's rule, or the file's switch, turns a declared window on.
absl::StatusOr<bool> WindowIsOn(const Json& root, const ModelConfig& config) {
  // Mistral's window is on when it is there, Qwen's has to be switched on, Llama has none.
  if (config.architecture == "llama") return false;
  return BoolOr(root, "use_sliding_window", config.architecture == "mistral");
}

// Case cfg-03. The layers that have a window, and a warning when one is declared and not used.
absl::Status ReadLayerPlan(const Json& root, ModelConfig* config) {
  const Json& declared = At(root, "sliding_window");
  const auto layers = static_cast<size_t>(config->layers);
  BATON_ASSIGN_OR_RETURN(const auto types, ReadLayerTypes(root, config->layers));
  BATON_ASSIGN_OR_RETURN(const bool on, WindowIsOn(root, *config));
  if (on && config->architecture != "mistral" && !root.contains("sliding_window")) {
    return Bad("'use_sliding_window' is true and there is no 'sliding_window'");
  }
  std::vector<bool> windowed(layers, false);
  if (on && !declared.is_null()) {
    BATON_ASSIGN_OR_RETURN(config->sliding_window, Int(root, "sliding_window"));
    // Qwen: the first `max_window_layers` see everything; the default is Transformers'.
    int64_t first = 0;
    if (config->architecture != "mistral") {
      BATON_ASSIGN_OR_RETURN(first, IntOr(root, "max_window_layers", 28));
      if (first < 0) return Bad(Cat("'max_window_layers' is ", first, ", must be at least 0"));
    }
    for (auto i = static_cast<size_t>(first); i < layers; ++i) windowed[i] = true;
    if (types.has_value() && config->architecture != "mistral") windowed = *types;
  }
  if (types.has_value() && *types != windowed) {
    return Unsupported(Cat("'layer_types' that contradicts 'sliding_window' ", declared.dump(),
                           " of a ", config->architecture, " model"));
  }
  if (std::find(windowed.begin(), windowed.end(), true) != windowed.end()) {
    config->windowed_layers = std::move(windowed);
    return absl::OkStatus();
  }
  config->sliding_window.reset();
  if (declared.is_null()) return absl::OkStatus();
  BATON_ASSIGN_OR_RETURN(const int64_t unused, Int(root, "sliding_window"));
  // Said outright in the file, as Qwen2.5 ships it, it needs no warning.
  if (At(root, "use_sliding_window") == false) return absl::OkStatus();
  config->warnings.push_back(Cat("config.json: 'sliding_window' ", unused, " is not used: ",
                                 config->architecture == "llama" ? "Llama models have none"
                                 : on ? "'max_window_layers' or 'layer_types' leaves it no layer"
                                      : "'use_sliding_window' is absent, which means false"));
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
  // Mistral and Qwen2 have no such switch: Transformers ignores it there.
  const bool has_switch = config->architecture == "llama" || config->architecture == "qwen3";
  BATON_ASSIGN_OR_RETURN(const bool bias, BoolOr(root, "attention_bias", false));
  config->attention_bias = has_switch && bias;
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
  BATON_RETURN_IF_ERROR(ReadEndTokens(root, generation_config_json, &config));
  const auto check = [&] {
    const absl::Status status = CheckModelConfig(config);
    return status.ok() ? status : Bad(StdView(status.message()));
  };
  BATON_RETURN_IF_ERROR(check());  // before anything is sized by a number of it
  BATON_RETURN_IF_ERROR(ReadLayerPlan(root, &config));
  BATON_RETURN_IF_ERROR(check());
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
