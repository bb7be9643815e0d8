// BPE, byte-level or SentencePiece: text <-> token ids, the same ids that Hugging Face
// `tokenizers`, SentencePiece or tiktoken give.
//
// A Tokenizer is immutable after construction and safe to use from any thread (an internal bounded
// word cache has its own locks). It is made from a Hugging Face tokenizer.json, a SentencePiece
// .model, a .tiktoken file or the vocabulary inside a GGUF file; whatever it does not implement is
// refused by name at load.
//
//   BATON_ASSIGN_OR_RETURN(auto tokenizer, Tokenizer::FromJson(text));
//   BATON_ASSIGN_OR_RETURN(auto ids, tokenizer->Encode("Hello", {.add_bos = true}));
//
// Characters for which the vocabulary has neither a token nor bytes nor an unknown token are
// dropped, as `tokenizers` does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/tokenizer/gguf_vocab.h"

namespace baton {

struct TokenizerSpec;

// Longest text one Encode call accepts, in bytes.
inline constexpr size_t kMaxEncodeBytes = size_t{16} << 20;

struct EncodeOptions {
  // True: the text of special tokens ("<|im_end|>") becomes their id. False: it is ordinary text.
  // Added tokens that are not special are always recognised.
  bool parse_special = false;
  // True: apply the model's BOS rule (see Tokenizer::adds_bos). Nothing is removed or looked at in
  // the text, so a BOS the user wrote stays as well.
  bool add_bos = false;
};

struct DecodeOptions {
  bool skip_special = false;
  // True: the ids go on a text that is already there, so a space at their start belongs to it.
  // False: the space that a SentencePiece vocabulary puts in front of each text is taken off again.
  bool continues_text = false;
};

// A piece of a text whose special tokens are parsed or not. Pieces are tokenised as one text:
// words may span a boundary, exactly as if the pieces had been joined first.
struct TextPiece {
  std::string_view text;
  bool parse_special = false;
  // True: no added token is found in it, special or not (Qwen's "</think>"), but for those that
  // vocabularies look for in normalised text, such as runs of spaces.
  bool literal = false;
};

class Tokenizer {
 public:
  // `tokenizer_json`: a tokenizer.json, or what Serialize() returned. `tokenizer_config_json`: the
  // tokenizer_config.json beside it (bos_token, eos_token, add_bos_token) or empty.
  // Errors: InvalidArgument (malformed), Unimplemented (a feature named in the message).
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromJson(
      std::string_view tokenizer_json, std::string_view tokenizer_config_json = {});

  // `bytes`: a SentencePiece .model (BPE) or a .tiktoken file (Qwen's). `tokenizer_config_json` as
  // above, and added_tokens_decoder. Errors as FromJson.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromVocabulary(
      std::string_view bytes, std::string_view tokenizer_config_json = {});

  // From GGUF metadata; see ReadGgufVocab in gguf_vocab.h.
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromGguf(const GgufVocab& vocab);

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Errors: InvalidArgument for text that is not UTF-8 (names the byte offset) or is longer than
  // kMaxEncodeBytes; ResourceExhausted when the split pattern gives up on the text.
  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text,
                                              const EncodeOptions& options = {}) const;

  // Encodes the pieces as one text. Each piece must be UTF-8 by itself. No BOS is added.
  absl::StatusOr<std::vector<int32_t>> EncodePieces(absl::Span<const TextPiece> pieces) const;

  // Valid UTF-8: bytes that form no character become U+FFFD, the same text a Detokenizer streams.
  // Errors: OutOfRange for an id outside [0, vocab_size).
  absl::StatusOr<std::string> Decode(absl::Span<const int32_t> ids,
                                     const DecodeOptions& options = {}) const;

  // The token's own bytes (may be part of a character). Empty for an id outside the vocabulary or
  // one no token has. Valid as long as the tokenizer.
  std::string_view TokenBytes(int32_t id) const;

  // Largest id + 1.
  int32_t vocab_size() const;
  std::optional<int32_t> bos_id() const;
  // The vocabulary's own end token. Which ids end a generation is ModelConfig::eos_ids.
  std::optional<int32_t> eos_id() const;
  // Whether a plain prompt starts with BOS. HF: add_bos_token of tokenizer_config.json, else
  // whether the post-processor's template starts with a special token; a SentencePiece .model does,
  // a .tiktoken file doesn't. GGUF: tokenizer.ggml.add_bos_token, else true for model = llama and
  // for pre = llama-bpe only (llama.cpp's rule).
  bool adds_bos() const;
  bool IsSpecial(int32_t id) const;
  // Spaces cut from the start of a decoded text: 1 for most SentencePiece vocabularies, else 0.
  int leading_spaces() const;
  // By the vocabulary's spelling ("Ġthe", "▁the") or an added token's text.
  std::optional<int32_t> TokenToId(std::string_view token) const;

  // A canonical tokenizer.json: FromJson on it gives an equal tokenizer.
  const std::string& Serialize() const;
  // XXH3-128, 32 hex digits, of what decides the ids: vocabulary, merges, added tokens, splitting,
  // normalisation. Equal for file forms of one vocabulary that give the same ids (GGUF and
  // tokenizer.json or .tiktoken; GGUF and .model), and for a base and a fine-tune that differ in
  // BOS/EOS only. Seeds block hashes.
  const std::string& digest() const;
  // XXH3-128, 32 hex digits, of Serialize(): the name under which a tokenizer is shipped.
  const std::string& content_digest() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<const Impl> impl);
  static absl::StatusOr<std::unique_ptr<Tokenizer>> FromSpec(TokenizerSpec spec);

  const std::unique_ptr<const Impl> impl_;
};

}  // namespace baton
