// A small random Llama as a Hugging Face folder, for tests of everything above the weights.
//
//   TinyLlama shape;                       // 3 layers, hidden 64, vocabulary 512 ...
//   WriteTinyLlama(dir, shape);            // config.json, model.safetensors, tokenizer files
//   auto source = ModelSource::Open(dir);
//
// Equal shapes and seeds give equal bytes. The tokenizer is byte-level BPE: ids 0..255 are the
// bytes, 256 <|im_start|>, 257 <|im_end|> (the end token), 258 <|endoftext|>, then pairs of
// letters; the chat template is ChatML.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace baton {

struct TinyLlama {
  int layers = 3;
  int hidden = 64;
  int heads = 4;
  int kv_heads = 2;
  int head_dim = 16;
  int ffn = 128;
  int vocab = 512;
  int max_context = 2048;
  int sliding_window = 0;  // tokens; above 0 the folder is a Mistral's
  std::uint32_t seed = 1;
  bool tokenizer = true;  // needs vocab >= 259
};

inline constexpr std::int32_t kTinyImStart = 256;
inline constexpr std::int32_t kTinyImEnd = 257;
inline constexpr std::int32_t kTinyEndOfText = 258;

namespace tiny_model_internal {

inline void WriteFile(const std::filesystem::path& path, const std::string& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (!out.flush()) throw std::runtime_error("cannot write " + path.string());
}

inline std::string Utf8(std::uint32_t c) {
  if (c < 0x80) return std::string(1, static_cast<char>(c));
  return {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 0x3F))};
}

// GPT-2's printable stand-in for a byte.
inline std::string ByteToken(int byte) {
  const auto printable = [](int b) {
    return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
  };
  if (printable(byte)) return Utf8(static_cast<std::uint32_t>(byte));
  std::uint32_t next = 256;
  for (int b = 0; b < byte; ++b) next += printable(b) ? 0 : 1;
  return Utf8(next);
}

inline std::string Quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out + "\"";
}

// Pairs of letters in a fixed order: "aa", "ab", ... then "Aa" ...
inline std::pair<std::string, std::string> Pair(int i) {
  const char* first = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
  return {std::string(1, first[(i / 26) % 52]), std::string(1, static_cast<char>('a' + i % 26))};
}

inline std::string TokenizerJson(int vocab) {
  const std::vector<std::string> specials = {"<|im_start|>", "<|im_end|>", "<|endoftext|>"};
  std::string entries, added, merges;
  for (int b = 0; b < 256; ++b) {
    entries += Quoted(ByteToken(b)) + ":" + std::to_string(b) + ",";
  }
  for (std::size_t i = 0; i < specials.size(); ++i) {
    const std::string id = std::to_string(256 + i);
    entries += Quoted(specials[i]) + ":" + id + ",";
    added += std::string(i ? "," : "") + "{\"id\":" + id + ",\"content\":" + Quoted(specials[i]) +
             ",\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,"
             "\"special\":true}";
  }
  for (int id = 259; id < vocab && id < 259 + 26 * 52; ++id) {
    const auto [left, right] = Pair(id - 259);
    entries += Quoted(left + right) + ":" + std::to_string(id) + ",";
    merges += std::string(merges.empty() ? "" : ",") + Quoted(left + " " + right);
  }
  entries.pop_back();
  return "{\"version\":\"1.0\",\"truncation\":null,\"padding\":null,\"added_tokens\":[" + added +
         "],\"normalizer\":null,\"pre_tokenizer\":{\"type\":\"ByteLevel\",\"add_prefix_space\":"
         "false,\"trim_offsets\":true,\"use_regex\":true},\"post_processor\":null,\"decoder\":{"
         "\"type\":\"ByteLevel\",\"add_prefix_space\":true,\"trim_offsets\":true,\"use_regex\":"
         "true},\"model\":{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":null,"
         "\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,\"fuse_unk\":false,"
         "\"byte_fallback\":false,\"vocab\":{" +
         entries + "},\"merges\":[" + merges + "]}}";
}

inline std::string TokenizerConfigJson() {
  const std::string chatml =
      "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
      "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}"
      "{{ '<|im_start|>assistant\n' }}{% endif %}";
  return "{\"bos_token\":null,\"eos_token\":\"<|im_end|>\",\"add_bos_token\":false,"
         "\"chat_template\":" +
         Quoted(chatml) + "}";
}

inline std::string ConfigJson(const TinyLlama& m) {
  const auto field = [](const char* name, int value) {
    return Quoted(name) + ":" + std::to_string(value) + ",";
  };
  const std::string family =
      m.sliding_window > 0
          ? "{\"architectures\":[\"MistralForCausalLM\"],\"model_type\":\"mistral\"," +
                field("sliding_window", m.sliding_window)
          : "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",";
  return family +
         "\"hidden_act\":\"silu\",\"rms_norm_eps\":1e-05,\"rope_theta\":10000.0,"
         "\"rope_scaling\":null,\"attention_bias\":false,\"tie_word_embeddings\":false,"
         "\"torch_dtype\":\"float32\"," +
         field("hidden_size", m.hidden) + field("intermediate_size", m.ffn) +
         field("num_hidden_layers", m.layers) + field("num_attention_heads", m.heads) +
         field("num_key_value_heads", m.kv_heads) + field("head_dim", m.head_dim) +
         field("vocab_size", m.vocab) + field("max_position_embeddings", m.max_context) +
         (m.tokenizer ? "\"eos_token_id\":257}" : "\"eos_token_id\":null}");
}

// Collects tensors and writes them as one safetensors file.
class Safetensors {
 public:
  explicit Safetensors(std::uint32_t seed) : rng_(seed) {}

  // Roughly normal, standard deviation `scale`, around `mean`.
  void Add(const std::string& name, std::vector<int> shape, float scale, float mean = 0) {
    std::size_t count = 1;
    std::string dims;
    for (const int d : shape) {
      count *= static_cast<std::size_t>(d);
      dims += (dims.empty() ? "" : ",") + std::to_string(d);
    }
    const std::size_t begin = data_.size();
    data_.resize(begin + count * sizeof(float));
    for (std::size_t i = 0; i < count; ++i) {
      // Not std::normal_distribution, whose values differ between libraries.
      float sum = 0;
      for (int k = 0; k < 4; ++k) sum += static_cast<float>(rng_() >> 8) * 0x1p-24f - 0.5f;
      const float value = mean + scale * sum * 1.7320508f;
      std::memcpy(data_.data() + begin + i * sizeof(float), &value, sizeof(float));
    }
    header_ += (header_.empty() ? "" : ",") + Quoted(name) + ":{\"dtype\":\"F32\",\"shape\":[" +
               dims + "],\"data_offsets\":[" + std::to_string(begin) + "," +
               std::to_string(data_.size()) + "]}";
  }

  void Write(const std::filesystem::path& path) const {
    std::string header = "{" + header_ + "}";
    header.resize((header.size() + 7) / 8 * 8, ' ');
    std::string bytes(8, '\0');
    for (int i = 0; i < 8; ++i) {
      bytes[static_cast<std::size_t>(i)] = static_cast<char>(header.size() >> (8 * i));
    }
    WriteFile(path, bytes + header + data_);
  }

 private:
  std::mt19937 rng_;
  std::string header_;
  std::string data_;
};

}  // namespace tiny_model_internal

// Creates `dir` if needed. Throws std::runtime_error when a file cannot be written.
inline void WriteTinyLlama(const std::filesystem::path& dir, const TinyLlama& m = {}) {
  namespace internal = tiny_model_internal;
  std::filesystem::create_directories(dir);
  internal::Safetensors tensors(m.seed);
  const auto linear = [&](const std::string& name, int out, int in) {
    tensors.Add(name, {out, in}, 1.0f / std::sqrt(static_cast<float>(in)));
  };
  tensors.Add("model.embed_tokens.weight", {m.vocab, m.hidden}, 1.0f);
  for (int i = 0; i < m.layers; ++i) {
    const std::string layer = "model.layers." + std::to_string(i) + ".";
    linear(layer + "self_attn.q_proj.weight", m.heads * m.head_dim, m.hidden);
    linear(layer + "self_attn.k_proj.weight", m.kv_heads * m.head_dim, m.hidden);
    linear(layer + "self_attn.v_proj.weight", m.kv_heads * m.head_dim, m.hidden);
    linear(layer + "self_attn.o_proj.weight", m.hidden, m.heads * m.head_dim);
    linear(layer + "mlp.gate_proj.weight", m.ffn, m.hidden);
    linear(layer + "mlp.up_proj.weight", m.ffn, m.hidden);
    linear(layer + "mlp.down_proj.weight", m.hidden, m.ffn);
    tensors.Add(layer + "input_layernorm.weight", {m.hidden}, 0.1f, 1.0f);
    tensors.Add(layer + "post_attention_layernorm.weight", {m.hidden}, 0.1f, 1.0f);
  }
  tensors.Add("model.norm.weight", {m.hidden}, 0.1f, 1.0f);
  tensors.Add("lm_head.weight", {m.vocab, m.hidden},
              2.0f / std::sqrt(static_cast<float>(m.hidden)));
  tensors.Write(dir / "model.safetensors");
  internal::WriteFile(dir / "config.json", internal::ConfigJson(m));
  if (m.tokenizer) {
    internal::WriteFile(dir / "tokenizer.json", internal::TokenizerJson(m.vocab));
    internal::WriteFile(dir / "tokenizer_config.json", internal::TokenizerConfigJson());
  }
}

}  // namespace baton
