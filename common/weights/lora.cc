#include "common/weights/lora.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/weights/dequantize.h"
#include "common/weights/digest.h"
#include "common/weights/safetensors.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;  // which of two patterns applies depends on their order
using Patterns = std::vector<std::pair<std::string, double>>;  // in file order

struct ModuleShape {
  std::string_view name;   // "q_proj"
  std::string_view block;  // "self_attn"
  int64_t in;
  int64_t out;
};

std::array<ModuleShape, 7> ModuleShapes(const ModelConfig& c) {
  const int64_t q = c.heads * c.head_dim;
  const int64_t kv = c.kv_heads * c.head_dim;
  return {{{"q_proj", "self_attn", c.hidden, q},
           {"k_proj", "self_attn", c.hidden, kv},
           {"v_proj", "self_attn", c.hidden, kv},
           {"o_proj", "self_attn", q, c.hidden},
           {"gate_proj", "mlp", c.hidden, c.ffn},
           {"up_proj", "mlp", c.hidden, c.ffn},
           {"down_proj", "mlp", c.ffn, c.hidden}}};
}

constexpr double kMaxAlpha = 1e6;

struct LoraConfig {
  int64_t rank = 0;
  double alpha = 0;
  bool rslora = false;
  Patterns rank_pattern;
  Patterns alpha_pattern;
  std::optional<std::set<std::string>> targets;  // nullopt: a pattern, or "all-linear"
};

absl::Status Bad(std::string_view what) { return absl::InvalidArgumentError(Cat(what)); }

const Json& At(const Json& object, const char* key) {
  static const Json null;
  const auto it = object.find(key);
  return it == object.end() ? null : *it;
}

// Absent, null, false, "", [] and {} all mean "not used".
bool IsUnset(const Json& value) {
  if (value.is_boolean()) return !value.get<bool>();
  if (value.is_string()) return value.get<std::string>().empty();
  return value.is_null() || ((value.is_array() || value.is_object()) && value.empty());
}

// Fields that are read here, or that say nothing about what the adapter computes. Every other field
// that is set is refused by name, so that none is ignored that changes the result
// (modules_to_save, use_dora, fan_in_fan_out, lora_bias, layer_replication … and what PEFT will
// add).
constexpr std::string_view kKnownFields[] = {"alpha_pattern",
                                             "auto_mapping",
                                             "base_model_name_or_path",
                                             "bias",
                                             "corda_config",
                                             "ensure_weight_tying",
                                             "eva_config",
                                             "exclude_modules",
                                             "inference_mode",
                                             "init_lora_weights",
                                             "layers_pattern",
                                             "layers_to_transform",
                                             "loftq_config",
                                             "lora_alpha",
                                             "lora_dropout",
                                             "lora_ga_config",
                                             "megatron_core",
                                             "peft_type",
                                             "peft_version",
                                             "qalora_group_size",
                                             "r",
                                             "rank_pattern",
                                             "revision",
                                             "runtime_config",
                                             "target_modules",
                                             "task_type",
                                             "use_rslora",
                                             "velora_config"};

absl::Status RefuseUnsupported(const Json& root) {
  for (const auto& [key, value] : root.items()) {
    const bool known =
        std::find(std::begin(kKnownFields), std::end(kKnownFields), key) != std::end(kKnownFields);
    if (!known && !IsUnset(value)) {
      return absl::UnimplementedError(Cat("'", key, "' is not supported"));
    }
  }
  const Json& bias = At(root, "bias");
  if (!IsUnset(bias) && bias != "none") {
    return absl::UnimplementedError(Cat("'bias' ", bias.dump(), " is not supported (\"none\" is)"));
  }
  // Others (pissa, olora, corda, loftq, lora_ga …) change the base weights as well, which such a
  // folder does not hold.
  const Json& init = At(root, "init_lora_weights");
  if (init.is_string() && init != "gaussian" && init != "eva" && init != "orthogonal") {
    return absl::UnimplementedError(
        Cat("'init_lora_weights' ", init.dump(), " is not supported: convert the adapter first"));
  }
  return absl::OkStatus();
}

absl::Status ReadPattern(const Json& root, const char* key, Patterns* out) {
  const Json& pattern = At(root, key);
  if (pattern.is_null()) return absl::OkStatus();
  if (!pattern.is_object()) return Bad(Cat("'", key, "' must be an object"));
  for (const auto& [module, value] : pattern.items()) {
    if (!value.is_number() || !(value.get<double>() > 0)) {
      return Bad(Cat("'", key, "': '", module, "' must be a positive number"));
    }
    // PEFT reads the key as a regular expression at the end of a module's name.
    constexpr std::string_view kPlain =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.";
    if (module.empty() || module.find_first_not_of(kPlain) != std::string::npos) {
      return absl::UnimplementedError(
          Cat("'", key, "': the pattern '", module, "' is not supported (module names are)"));
    }
    out->emplace_back(module, value.get<double>());
  }
  return absl::OkStatus();
}

absl::StatusOr<LoraConfig> ReadConfig(const std::string& text, int64_t max_rank) {
  const Json root = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return Bad("not a JSON object");
  if (const Json& type = At(root, "peft_type"); type != "LORA") {
    return absl::UnimplementedError(Cat("'peft_type' ", type.dump(), " is not supported"));
  }
  BATON_RETURN_IF_ERROR(RefuseUnsupported(root));
  LoraConfig config;
  const Json& rank = At(root, "r");
  if (!rank.is_number_integer() || rank < 1) return Bad("'r' must be a positive integer");
  if (rank > max_rank) {
    return Bad(Cat("'r' is ", rank.dump(), ", at most ", max_rank, " allowed"));
  }
  config.rank = rank.get<int64_t>();
  const Json& alpha = At(root, "lora_alpha");
  if (!alpha.is_number() || !(alpha.get<double>() > 0) || alpha.get<double>() > kMaxAlpha) {
    return Bad("'lora_alpha' must be a positive number up to 1e6");
  }
  config.alpha = alpha.get<double>();
  const Json& rslora = At(root, "use_rslora");
  if (!rslora.is_null() && !rslora.is_boolean()) return Bad("'use_rslora' must be true or false");
  config.rslora = rslora.is_boolean() && rslora.get<bool>();
  BATON_RETURN_IF_ERROR(ReadPattern(root, "rank_pattern", &config.rank_pattern));
  BATON_RETURN_IF_ERROR(ReadPattern(root, "alpha_pattern", &config.alpha_pattern));
  for (const auto& [module, value] : config.alpha_pattern) {
    if (value > kMaxAlpha) {
      return Bad(Cat("'alpha_pattern': '", module, "' is ", value, ", at most 1e6 allowed"));
    }
  }
  for (const auto& [module, value] : config.rank_pattern) {
    if (value > static_cast<double>(max_rank) || value != std::floor(value)) {
      return Bad(
          Cat("'rank_pattern': '", module, "' is ", value, ", at most ", max_rank, " allowed"));
    }
  }
  if (const Json& targets = At(root, "target_modules"); targets.is_array()) {
    config.targets.emplace();
    for (const Json& target : targets) {
      if (!target.is_string()) return Bad("'target_modules' must be names");
      config.targets->insert(target.get<std::string>());
    }
  }
  return config;
}

// Whether `key` is `path` or its end after a dot.
bool EndsAt(std::string_view path, std::string_view key) {
  return path == key || (path.size() > key.size() && path.ends_with(key) &&
                         path[path.size() - key.size() - 1] == '.');
}

// The first that fits, as in PEFT.
double PatternOr(const Patterns& pattern, std::string_view path, double fallback) {
  for (const auto& [key, value] : pattern) {
    if (EndsAt(path, key)) return value;
  }
  return fallback;
}

struct TensorPlace {
  int64_t layer = 0;
  const ModuleShape* module = nullptr;
  bool is_a = false;
};

// "base_model.model.model.layers.3.self_attn.q_proj.lora_A.weight"
std::optional<TensorPlace> PlaceOf(std::string_view name,
                                   const std::array<ModuleShape, 7>& modules) {
  constexpr std::string_view kPrefix = "base_model.model.model.layers.";
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  TensorPlace place;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), place.layer);
  if (error != std::errc() || place.layer < 0) return std::nullopt;
  name.remove_prefix(static_cast<size_t>(end - name.data()));
  for (const ModuleShape& module : modules) {
    const std::string stem = Cat(".", module.block, ".", module.name, ".");
    if (!name.starts_with(stem)) continue;
    const std::string_view rest = name.substr(stem.size());
    place.module = &module;
    place.is_a = rest == "lora_A.weight";
    if (!place.is_a && rest != "lora_B.weight") return std::nullopt;
    return place;
  }
  return std::nullopt;
}

// Reads one side of a module into the adapter.
absl::Status ReadSide(const TensorView& view, const TensorPlace& place, const LoraConfig& lora,
                      LoraAdapter* adapter) {
  const auto bad = [&](std::string_view what) {
    return absl::InvalidArgumentError(Cat("tensor '", view.name, "': ", what));
  };
  if (place.layer >= static_cast<int64_t>(adapter->layers.size())) {
    return bad(Cat("layer ", place.layer, ", the model has ", adapter->layers.size()));
  }
  const ModuleShape& shape = *place.module;
  const std::string path = Cat("model.layers.", place.layer, ".", shape.block, ".", shape.name);
  if (lora.targets.has_value() &&
      std::none_of(lora.targets->begin(), lora.targets->end(),
                   [&](const std::string& target) { return EndsAt(path, target); })) {
    return bad("its module is not one of 'target_modules'");
  }
  const auto rank =
      static_cast<int64_t>(PatternOr(lora.rank_pattern, path, static_cast<double>(lora.rank)));
  const std::vector<int64_t> expected =
      place.is_a ? std::vector<int64_t>{rank, shape.in} : std::vector<int64_t>{shape.out, rank};
  if (view.shape != expected) {
    return bad(Cat("shape ", ShapeString(view.shape), ", expected ", ShapeString(expected)));
  }
  LoraModule& module = adapter->layers[static_cast<size_t>(place.layer)][std::string(shape.name)];
  module.rank = rank;
  module.in = shape.in;
  module.out = shape.out;
  const double alpha = PatternOr(lora.alpha_pattern, path, lora.alpha);
  const auto divisor = static_cast<double>(rank);
  module.scale = static_cast<float>(alpha / (lora.rslora ? std::sqrt(divisor) : divisor));
  std::vector<float>& values = place.is_a ? module.a : module.b;
  values.resize(static_cast<size_t>(view.elements()));
  BATON_RETURN_IF_ERROR(DequantizeRow(view.dtype, view.data, values.data(), view.elements()));
  if (!std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); })) {
    return bad("holds a value that is not finite");
  }
  adapter->max_rank = std::max(adapter->max_rank, rank);
  return absl::OkStatus();
}

std::string_view Bytes(const std::vector<float>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}

// Every module needs both sides, and every target at least one module.
absl::Status CheckComplete(const LoraConfig& lora, const LoraAdapter& adapter,
                           const std::array<ModuleShape, 7>& modules) {
  std::set<std::string_view> used;
  for (size_t layer = 0; layer < adapter.layers.size(); ++layer) {
    for (const auto& [name, module] : adapter.layers[layer]) {
      used.insert(name);
      if (module.a.empty() || module.b.empty()) {
        return absl::InvalidArgumentError(Cat("layer ", layer, " ", name, " has no lora_",
                                              module.a.empty() ? "A" : "B", " tensor"));
      }
    }
  }
  if (used.empty()) return absl::InvalidArgumentError("the adapter has no tensors");
  for (const std::string& target : lora.targets.value_or(std::set<std::string>())) {
    const auto known = std::find_if(modules.begin(), modules.end(),
                                    [&](const ModuleShape& m) { return EndsAt(target, m.name); });
    if (known == modules.end()) {
      return absl::UnimplementedError(
          Cat("'target_modules': '", target, "' is not a module that can be adapted"));
    }
    if (!used.contains(known->name)) {
      return absl::InvalidArgumentError(
          Cat("'target_modules' names '", target, "', for which there are no tensors"));
    }
  }
  return absl::OkStatus();
}

std::string DigestOf(const LoraAdapter& adapter) {
  PartDigest digest;
  digest.Add("baton lora 1");
  for (size_t layer = 0; layer < adapter.layers.size(); ++layer) {
    for (const auto& [name, module] : adapter.layers[layer]) {
      digest.Add(Cat(layer, ".", name, " ", module.rank, " ", module.in, " ", module.out));
      digest.Add(Bytes({module.scale}));
      digest.Add(Xxh3Hex(module.a.data(), module.a.size() * sizeof(float)));
      digest.Add(Xxh3Hex(module.b.data(), module.b.size() * sizeof(float)));
    }
  }
  return digest.Hex();
}

absl::StatusOr<LoraAdapter> Load(const std::string& dir, const ModelConfig& config,
                                 int64_t max_rank) {
  BATON_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(dir + "/adapter_config.json"));
  auto lora = ReadConfig(text, max_rank);
  if (!lora.ok()) {
    return absl::Status(lora.status().code(),
                        Cat("adapter_config.json: ", StdView(lora.status().message())));
  }
  BATON_ASSIGN_OR_RETURN(const auto file,
                         SafetensorsFile::Open(dir + "/adapter_model.safetensors"));
  const auto modules = ModuleShapes(config);
  LoraAdapter adapter;
  adapter.layers.resize(static_cast<size_t>(config.layers));
  for (const TensorView& view : file->tensors()) {
    const auto place = PlaceOf(view.name, modules);
    if (!place.has_value()) {
      return absl::UnimplementedError(
          Cat("tensor '", view.name, "' is not lora_A or lora_B of a linear layer"));
    }
    BATON_RETURN_IF_ERROR(ReadSide(view, *place, *lora, &adapter));
  }
  BATON_RETURN_IF_ERROR(CheckComplete(*lora, adapter, modules));
  adapter.digest = DigestOf(adapter);
  return adapter;
}

}  // namespace

absl::StatusOr<LoraAdapter> LoadLoraAdapter(const std::string& dir, const std::string& name,
                                            const ModelConfig& config, int64_t max_rank) {
  auto adapter = Load(dir, config, max_rank);
  if (!adapter.ok()) {
    return absl::Status(adapter.status().code(), Cat("LoRA adapter '", name, "' in ", dir, ": ",
                                                     StdView(adapter.status().message())));
  }
  adapter->name = name;
  return adapter;
}

}  // namespace baton
