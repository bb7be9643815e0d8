// What decides a tokenizer's ids, the same for every file format.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/gguf_vocab.h"

namespace baton {

inline constexpr int64_t kMaxVocab = int64_t{1} << 22;

// The split pattern of GPT-2, which Hugging Face's ByteLevel pre-tokenizer has built in.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
};

struct TokenizerSpec {
  bool nfc = false;
  std::vector<std::string> split_patterns;  // see PreTokenizer
  bool add_prefix_space = false;            // a space before text that has none
  bool ignore_merges = false;               // a word that is a token is not merged
  std::vector<std::string> tokens;          // by id, as spelled in the vocabulary; "" = none
  std::vector<std::pair<std::string, std::string>> merges;  // best first
  std::vector<AddedToken> added;                            // by id
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;
  bool add_bos = false;
};

// Errors as Tokenizer::FromJson and Tokenizer::FromGguf.
absl::StatusOr<TokenizerSpec> SpecFromJson(std::string_view tokenizer_json,
                                           std::string_view tokenizer_config_json);
absl::StatusOr<TokenizerSpec> SpecFromGguf(const GgufVocab& vocab);

// A canonical tokenizer.json.
std::string SpecToJson(const TokenizerSpec& spec);

// XXH3-128 of everything but BOS and EOS, 32 hex digits.
std::string SpecDigest(const TokenizerSpec& spec);

// XXH3-128 of `bytes`, 32 hex digits.
std::string HexDigest(std::string_view bytes);

}  // namespace baton
