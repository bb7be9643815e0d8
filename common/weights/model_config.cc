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
  if (rope.scaling == RopeConfig::Scaling::kYarn) {
    BATON_RETURN_IF_ERROR(InRange("rope theta of YaRN", rope.theta, 1.001, 1e12));
    BATON_RETURN_IF_ERROR(InRange("rope beta_slow", rope.beta_slow, 1e-3, 1e6));
    BATON_RETURN_IF_ERROR(InRange("rope beta_fast", rope.beta_fast, rope.beta_slow, 1e6));
    BATON_RETURN_IF_ERROR(InRange("rope attention_factor", rope.attention_factor, 1e-3, 1e3));
    BATON_RETURN_IF_ERROR(
        InRange("rope original context length", rope.original_max_context, 1, int64_t{1} << 27));
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
    BATON_RETURN_IF_ERROR(InRange("layers in the window plan",
                                  static_cast<int64_t>(c.windowed_layers.size()), c.layers,
                                  c.layers));
  }
  if (c.bos_id.has_value()) {
    BATON_RETURN_IF_ERROR(InRange("BOS id", int64_t{*c.bos_id}, 0, c.vocab - 1));
  }
  for (int32_t id : c.eos_ids) {
    BATON_RETURN_IF_ERROR(InRange("EOS id", int64_t{id}, 0, c.vocab - 1));
  }
  return CheckRope(c.rope, c.head_dim);
}

double YarnMscale(double factor, double mscale) {
  return factor <= 1.0 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

void ExtendContext(ModelConfig* config) {
  const double reach = static_cast<double>(config->rope.original_max_context) * config->rope.factor;
  if (config->rope.scaling != RopeConfig::Scaling::kYarn || !(reach < 1e9)) return;
  config->max_context = std::max(config->max_context, static_cast<int64_t>(reach));
}

absl::Status CheckRunnable(const ModelConfig& config) {
  static constexpr std::string_view kRunnable[] = {"llama", "mistral", "qwen2", "qwen3"};
  if (std::find(std::begin(kRunnable), std::end(kRunnable), config.architecture) !=
      std::end(kRunnable)) {
    return absl::OkStatus();
  }
  return absl::UnimplementedError(
      Cat("models of architecture '", config.architecture, "' are not supported"));
}

namespace {

std::string DescribeRope(const ModelConfig& c) {
  std::string text = Cat("RoPE theta ", c.rope.theta);
  switch (c.rope.scaling) {
    case RopeConfig::Scaling::kNone:
      return c.rope.freq_factors.empty() ? text : text + " with a factor for each frequency";
    case RopeConfig::Scaling::kLinear:
      return Cat(text, " stretched ", c.rope.factor, " times (linear)");
    case RopeConfig::Scaling::kLlama3:
      return Cat(text, " stretched ", c.rope.factor, " times (llama3, from ",
                 c.rope.original_max_context, " tokens)");
    case RopeConfig::Scaling::kYarn:
      return Cat(text, " stretched ", c.rope.factor, " times (YaRN, from ",
                 c.rope.original_max_context, " tokens, attention factor ", c.rope.attention_factor,
                 ")");
  }
  return text;
}

// "layers 0-3 see everything, 4-7 see a window of 4096 tokens"
std::string DescribeLayers(const ModelConfig& c) {
  if (c.windowed_layers.empty()) return Cat("all ", c.layers, " layers see everything");
  std::string text = "layers ";
  for (int64_t begin = 0, end = 0; begin < c.layers; begin = end) {
    const int64_t window = c.WindowOf(begin);
    while (end < c.layers && c.WindowOf(end) == window) ++end;
    if (begin > 0) text += ", ";
    text += end - begin > 1 ? Cat(begin, "-", end - 1) : Cat(begin);
    text += window == 0 ? " see everything" : Cat(" see a window of ", window, " tokens");
  }
  return text;
}

}  // namespace

std::string Describe(const ModelConfig& c) {
  std::string text = Cat(c.architecture, ", ", c.layers, " layers of ", c.hidden, ", ", c.heads,
                         " heads and ", c.kv_heads, " KV heads of ", c.head_dim, ", vocabulary ",
                         c.vocab, ", context ", c.max_context, "; ", DescribeRope(c));
  if (c.attention_bias) {
    text += "; biases on q, k, v, o";
  } else if (c.qkv_bias) {
    text += "; biases on q, k, v";
  }
  if (c.qk_norm) text += "; norms on q, k";
  if (c.tie_embeddings) text += "; tied head";
  return Cat(text, "; ", DescribeLayers(c));
}

namespace {

// The YaRN blend: how much of dimension pair `i` is kept as trained (1) rather than stretched (0).
// Step by step in fp32 where Transformers has tensors, in fp64 where it has Python numbers.
std::vector<float> YarnKeptShare(const RopeConfig& rope, int64_t head_dim) {
  const auto dim = static_cast<double>(head_dim);
  // The (fractional) pair that makes `turns` turns within the original context.
  const auto pair_of = [&](double turns) {
    return dim *
           std::log(static_cast<double>(rope.original_max_context) /
                    (turns * 2 * std::numbers::pi)) /
           (2 * std::log(rope.theta));
  };
  double low = pair_of(rope.beta_fast);
  double high = pair_of(rope.beta_slow);
  if (rope.truncate) {
    low = std::floor(low);
    high = std::ceil(high);
  }
  low = std::max(low, 0.0);
  high = std::min(high, dim - 1);
  if (low == high) high += 0.001;
  std::vector<float> kept(static_cast<size_t>(head_dim / 2));
  for (size_t i = 0; i < kept.size(); ++i) {
    const float ramp =
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low);
    kept[i] = 1.0f - std::clamp(ramp, 0.0f, 1.0f);
  }
  return kept;
}

// Long waves are stretched by `factor`, short ones kept, those between blended.
float Llama3Frequency(const RopeConfig& rope, float frequency) {
  const float factor = static_cast<float>(rope.factor);
  const float low = static_cast<float>(rope.low_freq_factor);
  const float high = static_cast<float>(rope.high_freq_factor);
  const float original = static_cast<float>(rope.original_max_context);
  const float wavelength = 2.0f * std::numbers::pi_v<float> / frequency;
  if (wavelength > original / low) return frequency / factor;
  if (wavelength < original / high) return frequency;
  const float smooth = (original / wavelength - low) / (high - low);
  return (1.0f - smooth) * frequency / factor + smooth * frequency;
}

}  // namespace

std::vector<float> RopeInverseFrequencies(const ModelConfig& config) {
  // In fp32 step by step, as HF Transformers computes them: a last bit here is 1e-4 radians at
  // position 1,000, and shows in the logits.
  const RopeConfig& rope = config.rope;
  const float factor = static_cast<float>(rope.factor);
  std::vector<float> kept;
  if (rope.scaling == RopeConfig::Scaling::kYarn) kept = YarnKeptShare(rope, config.head_dim);
  std::vector<float> inverse(static_cast<size_t>(config.head_dim / 2));
  for (size_t i = 0; i < inverse.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(config.head_dim);
    // fp64 inside, rounded once: what a correctly rounded fp32 power gives.
    const float power =
        static_cast<float>(std::pow(double{static_cast<float>(rope.theta)}, double{exponent}));
    const float frequency = 1.0f / power;
    inverse[i] = frequency;
    if (!rope.freq_factors.empty()) {
      inverse[i] = frequency / rope.freq_factors[i];
    } else if (rope.scaling == RopeConfig::Scaling::kLinear) {
      inverse[i] = frequency / factor;
    } else if (rope.scaling == RopeConfig::Scaling::kLlama3) {
      inverse[i] = Llama3Frequency(rope, frequency);
    } else if (rope.scaling == RopeConfig::Scaling::kYarn) {
      inverse[i] = 1.0f / (factor * power) * (1.0f - kept[i]) + frequency * kept[i];
    }
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
