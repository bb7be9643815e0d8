// What a decoder-only model's files say about its shape, from config.json or GGUF metadata, with
// every number range-checked.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton {

class GgufFile;

struct RopeConfig {
  enum class Scaling { kNone, kLinear, kLlama3, kYarn };

  double theta = 10000.0;
  Scaling scaling = Scaling::kNone;
  double factor = 1.0;                  // all but kNone
  double low_freq_factor = 1.0;         // kLlama3
  double high_freq_factor = 4.0;        // kLlama3
  int64_t original_max_context = 8192;  // kLlama3, kYarn; tokens
  double beta_fast = 32.0;              // kYarn: turns within the original context above which a
  double beta_slow = 1.0;               // frequency is kept, and below which it is stretched
  bool truncate = true;                 // kYarn: those bounds are whole dimensions
  double attention_factor = 1.0;        // kYarn: multiplies the rotated q and k
  // Divisors of the unscaled frequencies, [head_dim / 2], from GGUF's rope_freqs.weight (how GGUF
  // stores llama3 scaling). When set they are the whole scaling.
  std::vector<float> freq_factors;

  bool operator==(const RopeConfig&) const = default;
};

struct ModelConfig {
  std::string architecture;  // "llama", "mistral", "qwen2", "qwen3"
  int64_t layers = 0;
  int64_t hidden = 0;
  int64_t heads = 0;
  int64_t kv_heads = 0;
  int64_t head_dim = 0;
  int64_t ffn = 0;
  int64_t vocab = 0;
  int64_t max_context = 0;  // tokens
  double rms_eps = 1e-5;
  RopeConfig rope;
  bool tie_embeddings = false;
  bool attention_bias = false;            // biases on q, k, v and o
  bool qkv_bias = false;                  // biases on q, k and v (also set by attention_bias)
  bool qk_norm = false;                   // RMS norm of each head's q and k
  std::optional<int64_t> sliding_window;  // tokens; only when some layer has it
  std::vector<bool> windowed_layers;      // [layers]; empty without a window
  std::string hidden_act = "silu";
  std::optional<int32_t> bos_id;
  std::vector<int32_t> eos_ids;  // any of them ends a generation; generation_config.json first
  // What the files declare and nothing uses, in words: for the log, once.
  std::vector<std::string> warnings;

  // Tokens that a query of `layer` sees, itself included; 0: all before it.
  int64_t WindowOf(int64_t layer) const {
    return windowed_layers.empty() || !windowed_layers[static_cast<size_t>(layer)]
               ? 0
               : sliding_window.value_or(0);
  }

  bool operator==(const ModelConfig&) const = default;
};

// `config_json`: config.json. `generation_config_json`: generation_config.json or empty; its
// eos_token_id list replaces config.json's. Llama, Mistral, Qwen2 and Qwen3 are parsed.
// Errors: InvalidArgument (missing, wrong type, out of range: names the key, value and limit),
// Unimplemented (architecture, MoE, RoPE type, activation … by name).
absl::StatusOr<ModelConfig> ParseHfConfig(std::string_view config_json,
                                          std::string_view generation_config_json = {});

// From the <architecture>.* keys of a GGUF file; same errors.
absl::StatusOr<ModelConfig> ParseGgufConfig(const GgufFile& file);

// Unimplemented for what parses but cannot run yet, by name.
absl::Status CheckRunnable(const ModelConfig& config);

// The derived plan in a line or two: shape, RoPE and which layers see what.
std::string Describe(const ModelConfig& config);

// Inverse RoPE frequencies in radians per token, [head_dim / 2], with the scaling applied:
// `_compute_llama3_parameters` and `_compute_yarn_parameters` of HF Transformers.
std::vector<float> RopeInverseFrequencies(const ModelConfig& config);

// Every tensor the model has, by Hugging Face name, with its shape. lm_head.weight only if untied.
std::vector<std::pair<std::string, std::vector<int64_t>>> ExpectedTensors(
    const ModelConfig& config);

}  // namespace baton
