// What decides a tokenizer's ids, the same for every file format.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/gguf_vocab.h"

namespace baton {

inline constexpr int64_t kMaxVocab = int64_t{1} << 22;
// A longer vocabulary entry is refused where the work to read it grows with its square.
inline constexpr size_t kMaxPieceBytes = 512;
// "All of them" for DecoderSpec::strip_left.
inline constexpr int kMaxStrip = 1 << 20;

// The split pattern of GPT-2, which Hugging Face's ByteLevel pre-tokenizer has built in.
inline constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
inline constexpr std::string_view kQwen2Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

// SentencePiece's mark for a space.
inline constexpr std::string_view kSpaceMark = "\u2581";

// How an added token is found, as in Hugging Face `tokenizers`.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;
  bool normalized = false;   // looked for in the normalised text, else in the text as given
  bool single_word = false;  // not inside a longer word
  bool lstrip = false;       // takes white space before it along
  bool rstrip = false;       // and after it
};

// One change of the text before it is split.
struct NormalizerStep {
  enum class Kind {
    kNfc,
    kNfd,
    kNfkc,
    kNfkd,
    kPrepend,        // `content` in front of text that is not empty
    kReplace,        // each match of `pattern` by `content`
    kSentencePiece,  // spaces become kSpaceMark; see the flags
  };
  Kind kind = Kind::kNfc;
  std::string pattern;  // see Pattern
  std::string content;
  // kSentencePiece: a space in front of the text, and in front of a part that follows an added
  // token unless it has one.
  bool dummy_prefix = false;
  bool collapse_spaces = false;  // runs of spaces become one, outer ones go
};

// One step of splitting text into words.
struct SplitStep {
  enum class Kind {
    kSplit,        // at the matches of `pattern`
    kPrefixSpace,  // a space before text that has none
    kMetaspace,    // spaces become kSpaceMark; one in front as `prefix` says
  };
  // What becomes of a match: see Hugging Face's SplitDelimiterBehavior.
  enum class Behavior { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
  enum class Prefix { kNever, kFirst, kAlways };  // kFirst: at the start of the text only

  Kind kind = Kind::kSplit;
  std::string pattern;
  Behavior behavior = Behavior::kIsolated;
  bool invert = false;  // what doesn't match counts as the match
  Prefix prefix = Prefix::kNever;
};

// How ids become text again.
struct DecoderSpec {
  std::vector<std::pair<std::string, std::string>> replace;  // within each token
  bool bytes = false;                                        // "<0x0A>" is that byte
  int strip_left = 0;                                        // spaces cut from the start of a text
};

struct TokenizerSpec {
  std::vector<NormalizerStep> normalizer;
  std::vector<SplitStep> splits;
  bool byte_level = true;         // words are spelled in GPT-2's byte alphabet, else in characters
  bool ignore_merges = false;     // a word that is a token is not merged
  std::optional<int32_t> unk_id;  // for characters without a token; none: they are dropped
  bool fuse_unk = false;          // several in a row become one
  bool byte_fallback = false;     // their bytes' tokens "<0x0A>" come first
  std::vector<std::string> tokens;  // by id, as spelled in the vocabulary; "" = none
  std::vector<std::pair<std::string, std::string>> merges;  // best first
  // SentencePiece instead of merges: by id; the pair that makes the token of the highest score
  // merges first, the leftmost of equals. Empty: merges decide.
  std::vector<float> scores;
  std::vector<AddedToken> added;  // by id
  DecoderSpec decoder;            // byte_level: nothing to say
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;
  bool add_bos = false;
};

// Errors as Tokenizer::FromJson, Tokenizer::FromGguf and Tokenizer::FromVocabulary.
absl::StatusOr<TokenizerSpec> SpecFromJson(std::string_view tokenizer_json,
                                           std::string_view tokenizer_config_json);
absl::StatusOr<TokenizerSpec> SpecFromGguf(const GgufVocab& vocab);
absl::StatusOr<TokenizerSpec> SpecFromSentencePiece(std::string_view bytes,
                                                    std::string_view tokenizer_config_json);
absl::StatusOr<TokenizerSpec> SpecFromTiktoken(std::string_view text,
                                               std::string_view tokenizer_config_json);

// The parts of a SentencePiece vocabulary that follow from its two flags and spec->byte_fallback.
void ApplySentencePieceRules(bool dummy_prefix, bool collapse_spaces, TokenizerSpec* spec);

// bos_token, eos_token and add_bos_token of a tokenizer_config.json, which may be empty. With
// `with_added`, also the tokens of its added_tokens_decoder.
absl::Status ApplyTokenizerConfig(std::string_view tokenizer_config_json, bool with_added,
                                  TokenizerSpec* spec);

// The id of a token or added token by its text.
std::optional<int32_t> FindToken(const TokenizerSpec& spec, std::string_view text);

// By id, for a spec with scores whose added tokens are among its tokens: 0 for the best score,
// equal for equal ones; -1 for what no merge makes (added tokens, bytes, ids without a token).
std::vector<int32_t> ScoreRanks(const TokenizerSpec& spec);

// "<0x0A>" -> 10; nullopt for any other text.
std::optional<uint8_t> ByteOfToken(std::string_view token);
std::string ByteTokenText(uint8_t byte);

// A canonical tokenizer.json.
std::string SpecToJson(const TokenizerSpec& spec);

// XXH3-128 of everything but BOS and EOS, 32 hex digits.
std::string SpecDigest(const TokenizerSpec& spec);

// XXH3-128 of `bytes`, 32 hex digits.
std::string HexDigest(std::string_view bytes);

}  // namespace baton
