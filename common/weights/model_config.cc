#include "common/weights/model_config.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numbers>
#include <string_view>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/weights/model_config_check.h"

namespace baton {
namespace {

absl::Status InRange(const char* field, int64_t value, int64_t min, int64_t max) {
  if (value >= min && value <= max) return absl::OkStatus();
  return absl::InvalidArgumentError(Cat(field, " is ", value, ", must be ", min, " to ", max));
}

absl::Status InRange(const char* field, double value, double min, double max) {
  if (value >= min && value <= max) return absl::OkStatus();  // false for NaN
  return absl::InvalidArgumentError(Cat(field, " is ", value, ", must be ", min, " to ", max));
}

absl::Status CheckRope(const RopeConfig& rope, int64_t head_dim) {
  BATON_RETURN_IF_ERROR(InRange("rope theta", rope.theta, 1.0, 1e12));
  if (rope.scaling != RopeConfig::Scaling::kNone) {
    BATON_RETURN_IF_ERROR(InRange("rope scaling factor", rope.factor, 1.0, 1e4));
  }
  if (rope.scaling == RopeConfig::Scaling::kLlama3) {
    BATON_RETURN_IF_ERROR(InRange("rope low_freq_factor", rope.low_freq_factor, 1e-3, 1e4));
    BATON_RETURN_IF_ERROR(InRange("rope high_freq_factor", rope.high_freq_factor, 1e-3, 1e4));
    if (rope.high_freq_factor <= rope.low_freq_factor) {
      return absl::InvalidArgumentError(Cat("rope high_freq_factor is ", rope.high_freq_factor,
                                            ", must be above low_freq_factor ",
                                            rope.low_freq_factor));
    }
    BATON_RETURN_IF_ERROR(InRange("rope original_max_position_embeddings",
                                  rope.original_max_context, 1, int64_t{1} << 27));
  }
  if (!rope.freq_factors.empty()) {
    BATON_RETURN_IF_ERROR(InRange("rope_freqs length",
                                  static_cast<int64_t>(rope.freq_factors.size()), head_dim / 2,
                                  head_dim / 2));
    for (float factor : rope.freq_factors) {
      BATON_RETURN_IF_ERROR(InRange("rope_freqs factor", double{factor}, 1e-4, 1e4));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckModelConfig(const ModelConfig& c) {
  BATON_RETURN_IF_ERROR(InRange("layers", c.layers, 1, 1024));
  BATON_RETURN_IF_ERROR(InRange("hidden size", c.hidden, 1, int64_t{1} << 17));
  BATON_RETURN_IF_ERROR(InRange("attention heads", c.heads, 1, 1024));
  BATON_RETURN_IF_ERROR(InRange("KV heads", c.kv_heads, 1, c.heads));
  if (c.heads % c.kv_heads != 0) {
    return absl::InvalidArgumentError(
        Cat("KV heads are ", c.kv_heads, ", must divide the ", c.heads, " attention heads"));
  }
  BATON_RETURN_IF_ERROR(InRange("head size", c.head_dim, 2, 1024));
  if (c.head_dim % 2 != 0) {
    return absl::InvalidArgumentError(Cat("head size is ", c.head_dim, ", must be even"));
  }
  BATON_RETURN_IF_ERROR(InRange("feed-forward size", c.ffn, 1, int64_t{1} << 20));
  BATON_RETURN_IF_ERROR(InRange("vocabulary size", c.vocab, 1, int64_t{1} << 22));
  BATON_RETURN_IF_ERROR(InRange("context length", c.max_context, 1, int64_t{1} << 27));
  BATON_RETURN_IF_ERROR(InRange("RMS norm epsilon", c.rms_eps, 1e-12, 1e-1));
  if (c.sliding_window.has_value()) {
    BATON_RETURN_IF_ERROR(InRange("sliding window", *c.sliding_window, 1, int64_t{1} << 27));
  }
  if (c.bos_id.has_value()) {
    BATON_RETURN_IF_ERROR(InRange("BOS id", int64_t{*c.bos_id}, 0, c.vocab - 1));
  }
  for (int32_t id : c.eos_ids) {
    BATON_RETURN_IF_ERROR(InRange("EOS id", int64_t{id}, 0, c.vocab - 1));
  }
  return CheckRope(c.rope, c.head_dim);
}

absl::Status CheckRunnable(const ModelConfig& config) {
  const auto refuse = [](std::string_view what) {
    return absl::UnimplementedError(Cat(what, " not supported yet"));
  };
  static constexpr std::string_view kRunnable[] = {"llama", "qwen2", "qwen3"};
  if (std::find(std::begin(kRunnable), std::end(kRunnable), config.architecture) ==
      std::end(kRunnable)) {
    return refuse(Cat("models of architecture '", config.architecture, "' are"));
  }
  if (config.sliding_window.has_value()) return refuse("sliding-window attention is");
  if (config.attention_bias) return refuse("a bias of o_proj is");
  return absl::OkStatus();
}

std::vector<float> RopeInverseFrequencies(const ModelConfig& config) {
  // In fp32 step by step, as HF Transformers computes them: a last bit here is 1e-4 radians at
  // position 1,000, and shows in the logits.
  const RopeConfig& rope = config.rope;
  const float theta = static_cast<float>(rope.theta);
  const float factor = static_cast<float>(rope.factor);
  const float low = static_cast<float>(rope.low_freq_factor);
  const float high = static_cast<float>(rope.high_freq_factor);
  const float original = static_cast<float>(rope.original_max_context);
  const int64_t half = config.head_dim / 2;
  std::vector<float> inverse(static_cast<size_t>(half));
  for (int64_t i = 0; i < half; ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.head_dim);
    // fp64 inside, rounded once: what a correctly rounded fp32 power gives.
    const float power = static_cast<float>(std::pow(double{theta}, double{exponent}));
    float frequency = 1.0f / power;
    if (!rope.freq_factors.empty()) {
      frequency /= rope.freq_factors[static_cast<size_t>(i)];
    } else if (rope.scaling == RopeConfig::Scaling::kLinear) {
      frequency /= factor;
    } else if (rope.scaling == RopeConfig::Scaling::kLlama3) {
      // Long waves are stretched by `factor`, short ones kept, those between blended.
      const float wavelength = 2.0f * std::numbers::pi_v<float> / frequency;
      if (wavelength > original / low) {
        frequency /= factor;
      } else if (wavelength >= original / high) {
        const float smooth = (original / wavelength - low) / (high - low);
        frequency = (1.0f - smooth) * frequency / factor + smooth * frequency;
      }
    }
    inverse[static_cast<size_t>(i)] = frequency;
  }
  return inverse;
}

std::vector<std::pair<std::string, std::vector<int64_t>>> ExpectedTensors(const ModelConfig& c) {
  std::vector<std::pair<std::string, std::vector<int64_t>>> tensors;
  const int64_t q = c.heads * c.head_dim;
  const int64_t kv = c.kv_heads * c.head_dim;
  tensors.push_back({"model.embed_tokens.weight", {c.vocab, c.hidden}});
  for (int64_t layer = 0; layer < c.layers; ++layer) {
    const std::string prefix = Cat("model.layers.", layer, ".");
    const auto add = [&](std::string_view name, std::vector<int64_t> shape) {
      tensors.emplace_back(Cat(prefix, name), std::move(shape));
    };
    add("input_layernorm.weight", {c.hidden});
    add("self_attn.q_proj.weight", {q, c.hidden});
    add("self_attn.k_proj.weight", {kv, c.hidden});
    add("self_attn.v_proj.weight", {kv, c.hidden});
    add("self_attn.o_proj.weight", {c.hidden, q});
    if (c.qkv_bias) {
      add("self_attn.q_proj.bias", {q});
      add("self_attn.k_proj.bias", {kv});
      add("self_attn.v_proj.bias", {kv});
    }
    if (c.attention_bias) add("self_attn.o_proj.bias", {c.hidden});
    if (c.qk_norm) {
      add("self_attn.q_norm.weight", {c.head_dim});
      add("self_attn.k_norm.weight", {c.head_dim});
    }
    add("post_attention_layernorm.weight", {c.hidden});
    add("mlp.gate_proj.weight", {c.ffn, c.hidden});
    add("mlp.up_proj.weight", {c.ffn, c.hidden});
    add("mlp.down_proj.weight", {c.hidden, c.ffn});
  }
  tensors.push_back({"model.norm.weight", {c.hidden}});
  if (!c.tie_embeddings) tensors.push_back({"lm_head.weight", {c.vocab, c.hidden}});
  return tensors;
}

}  // namespace baton
