// GGUF vocabulary -> TokenizerSpec.
#include <cmath>
#include <initializer_list>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/tokenizer/tokenizer_spec.h"
#include "common/tokenizer/utf8.h"

namespace baton {
namespace {

constexpr int64_t kTypeNormal = 1;
constexpr int64_t kTypeUnknown = 2;
constexpr int64_t kTypeControl = 3;
constexpr int64_t kTypeUserDefined = 4;
constexpr int64_t kTypeUnused = 5;
constexpr int64_t kTypeByte = 6;

constexpr const char* kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr const char* kTekkenPattern =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

absl::Status Malformed(std::string_view key, std::string_view what) {
  return absl::InvalidArgumentError(Cat("tokenizer.ggml.", key, ": ", what));
}

void SplitAt(std::initializer_list<std::string_view> patterns, TokenizerSpec* spec) {
  for (std::string_view pattern : patterns) {
    SplitStep step;
    step.pattern = pattern;
    spec->splits.push_back(std::move(step));
  }
}

// Splitting, normalisation and the BOS default that go with tokenizer.ggml.pre.
absl::Status ApplyPre(const std::string& pre, TokenizerSpec* spec) {
  if (pre == "smollm" || pre == "starcoder" || pre == "refact") {
    SplitAt({R"(\p{N})", kGpt2Pattern}, spec);
  } else if (pre == "gpt-2" || pre == "gpt2") {
    SplitAt({kGpt2Pattern}, spec);
  } else if (pre == "llama-bpe" || pre == "llama3" || pre == "llama-v3" || pre == "falcon3") {
    SplitAt({kLlama3Pattern}, spec);
    spec->ignore_merges = true;
    spec->add_bos = true;
  } else if (pre == "qwen2") {
    SplitAt({kQwen2Pattern}, spec);
    spec->normalizer.emplace_back();  // NFC
  } else if (pre == "tekken") {
    SplitAt({kTekkenPattern}, spec);
    spec->ignore_merges = true;
  } else if (pre == "default") {
    // llama.cpp's four steps for a file that does not say more.
    SplitAt({R"([\p{P}\$\+<=>\^~\|]+)", kGpt2Pattern, R"(\p{N}+)", "[0-9][0-9][0-9]"}, spec);
  } else {
    return absl::UnimplementedError(
        Cat("tokenizer.ggml.pre: '", pre,
            "' is not supported (smollm, starcoder, refact, gpt-2, llama-bpe, llama3, llama-v3, "
            "falcon3, qwen2, tekken and default are)"));
  }
  return absl::OkStatus();
}

absl::Status ReadTokens(const GgufVocab& vocab, TokenizerSpec* spec) {
  const size_t n = vocab.tokens.size();
  if (n == 0 || n > static_cast<size_t>(kMaxVocab)) {
    return Malformed("tokens", Cat(n, " tokens, must be 1 to ", kMaxVocab));
  }
  if (!vocab.token_types.empty() && vocab.token_types.size() != n) {
    return Malformed("token_type", Cat(vocab.token_types.size(), " entries for ", n, " tokens"));
  }
  if (!vocab.scores.empty() && vocab.scores.size() != n) {
    return Malformed("scores", Cat(vocab.scores.size(), " entries for ", n, " tokens"));
  }
  spec->tokens.reserve(n);
  for (size_t id = 0; id < n; ++id) {
    const std::string_view text = vocab.tokens[id];
    if (FirstInvalidUtf8(text)) {
      return Malformed("tokens", Cat("token ", id, " is not UTF-8"));
    }
    const int64_t type = vocab.token_types.empty() ? kTypeNormal : vocab.token_types[id];
    if (type < kTypeNormal || type > kTypeByte) {
      return Malformed("token_type", Cat("token ", id, " has type ", type, ", must be 1 to 6"));
    }
    spec->tokens.emplace_back(type == kTypeUnused ? std::string_view() : text);
    const bool special = type == kTypeControl || type == kTypeUnknown;
    if ((special || type == kTypeUserDefined) && !text.empty()) {
      AddedToken added;
      added.id = static_cast<int32_t>(id);
      added.content = std::string(text);
      added.special = special;
      spec->added.push_back(std::move(added));
    }
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const GgufVocab& vocab, TokenizerSpec* spec) {
  spec->merges.reserve(vocab.merges.size());
  for (size_t i = 0; i < vocab.merges.size(); ++i) {
    const std::string_view merge = vocab.merges[i];
    // The byte-level alphabet has no space, so the only one separates the two tokens.
    const size_t space = merge.find(' ');
    if (space == std::string_view::npos || space == 0 || space + 1 == merge.size() ||
        merge.find(' ', space + 1) != std::string_view::npos) {
      return Malformed("merges", Cat("merge ", i, " is not two tokens"));
    }
    spec->merges.emplace_back(merge.substr(0, space), merge.substr(space + 1));
  }
  return absl::OkStatus();
}

absl::Status ReadId(const char* key, const std::optional<int64_t>& value, size_t tokens,
                    std::optional<int32_t>* id) {
  if (!value.has_value()) return absl::OkStatus();
  if (*value < 0 || *value >= static_cast<int64_t>(tokens)) {
    return Malformed(key, Cat(*value, " is outside the vocabulary of ", tokens));
  }
  *id = static_cast<int32_t>(*value);
  return absl::OkStatus();
}

// SentencePiece BPE: scores and byte tokens instead of merges and the byte alphabet.
absl::Status ReadSentencePiece(const GgufVocab& vocab, TokenizerSpec* spec) {
  if (vocab.scores.empty()) return Malformed("scores", "missing, model = llama needs them");
  if (vocab.token_types.empty()) {
    return Malformed("token_type", "missing, model = llama needs it");
  }
  spec->scores = vocab.scores;
  for (size_t id = 0; id < vocab.tokens.size(); ++id) {
    const std::string_view text = vocab.tokens[id];
    if (!std::isfinite(vocab.scores[id])) {
      return Malformed("scores", Cat("token ", id, " has no finite score"));
    }
    if (text.size() > kMaxPieceBytes) {
      return Malformed("tokens", Cat("token ", id, " has ", text.size(), " bytes, at most ",
                                     kMaxPieceBytes, " are allowed"));
    }
    if (vocab.token_types[id] == kTypeUnknown && !spec->unk_id) {
      spec->unk_id = static_cast<int32_t>(id);
    }
    if (vocab.token_types[id] != kTypeByte) continue;
    if (!ByteOfToken(text)) {
      return Malformed("tokens", Cat("token ", id, " of type byte must be like <0x0A>"));
    }
    spec->byte_fallback = true;
  }
  BATON_RETURN_IF_ERROR(
      ReadId("unknown_token_id", vocab.unk_id, vocab.tokens.size(), &spec->unk_id));
  ApplySentencePieceRules(vocab.add_space_prefix.value_or(true),
                          vocab.remove_extra_whitespaces.value_or(false), spec);
  for (AddedToken& token : spec->added) token.normalized = !token.special;
  spec->bos_id = FindToken(*spec, "<s>");
  spec->eos_id = FindToken(*spec, "</s>");
  spec->add_bos = true;
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerSpec> SpecFromGguf(const GgufVocab& vocab) {
  TokenizerSpec spec;
  if (vocab.model == "gpt2") {
    BATON_RETURN_IF_ERROR(ApplyPre(vocab.pre, &spec));
    BATON_RETURN_IF_ERROR(ReadTokens(vocab, &spec));
    BATON_RETURN_IF_ERROR(ReadMerges(vocab, &spec));
  } else if (vocab.model == "llama") {
    BATON_RETURN_IF_ERROR(ReadTokens(vocab, &spec));
    BATON_RETURN_IF_ERROR(ReadSentencePiece(vocab, &spec));
  } else {
    return absl::UnimplementedError(
        Cat("tokenizer.ggml.model: '", vocab.model, "' is not supported (gpt2 and llama are)"));
  }
  BATON_RETURN_IF_ERROR(ReadId("bos_token_id", vocab.bos_id, vocab.tokens.size(), &spec.bos_id));
  BATON_RETURN_IF_ERROR(ReadId("eos_token_id", vocab.eos_id, vocab.tokens.size(), &spec.eos_id));
  if (vocab.add_bos.has_value()) {
    spec.add_bos = *vocab.add_bos;
  } else if (!spec.bos_id.has_value()) {
    spec.add_bos = false;
  }
  return spec;
}

}  // namespace baton
