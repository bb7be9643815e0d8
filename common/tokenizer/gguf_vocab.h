// The vocabulary as a GGUF file stores it, in plain data, so that the tokenizer and the GGUF reader
// (a room of the same layer) need not know each other.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/status_macros.h"

namespace baton {

// Views point into the GGUF file and are only read while a Tokenizer is built.
struct GgufVocab {
  std::string model;                     // tokenizer.ggml.model: "gpt2" is byte-level BPE,
                                         // "llama" SentencePiece BPE
  std::string pre;                       // tokenizer.ggml.pre; "default" when absent
  std::vector<std::string_view> tokens;  // by id
  std::vector<int64_t> token_types;      // empty, or one per token: 1 normal, 2 unknown,
                                         // 3 control, 4 user defined, 5 unused, 6 byte
  std::vector<float> scores;             // empty, or one per token
  std::vector<std::string_view> merges;  // "left right", best first
  std::optional<int64_t> bos_id;
  std::optional<int64_t> eos_id;
  std::optional<int64_t> unk_id;
  std::optional<bool> add_bos;
  // "llama" only.
  std::optional<bool> add_space_prefix;
  std::optional<bool> remove_extra_whitespaces;
};

// Reads the tokenizer.ggml.* keys. `Gguf` is GgufFile (common/weights/gguf.h) or anything with its
// typed getters. Errors: NotFound for a missing key, InvalidArgument for a wrong type.
template <typename Gguf>
absl::StatusOr<GgufVocab> ReadGgufVocab(const Gguf& file) {
  GgufVocab vocab;
  BATON_ASSIGN_OR_RETURN(vocab.model, file.GetString("tokenizer.ggml.model"));
  vocab.pre = "default";
  if (file.Has("tokenizer.ggml.pre")) {
    BATON_ASSIGN_OR_RETURN(vocab.pre, file.GetString("tokenizer.ggml.pre"));
  }
  BATON_ASSIGN_OR_RETURN(vocab.tokens, file.GetStringArray("tokenizer.ggml.tokens"));
  if (file.Has("tokenizer.ggml.token_type")) {
    BATON_ASSIGN_OR_RETURN(vocab.token_types, file.GetIntArray("tokenizer.ggml.token_type"));
  }
  if (file.Has("tokenizer.ggml.scores")) {
    BATON_ASSIGN_OR_RETURN(vocab.scores, file.GetFloatArray("tokenizer.ggml.scores"));
  }
  if (file.Has("tokenizer.ggml.merges")) {
    BATON_ASSIGN_OR_RETURN(vocab.merges, file.GetStringArray("tokenizer.ggml.merges"));
  }
  if (file.Has("tokenizer.ggml.bos_token_id")) {
    BATON_ASSIGN_OR_RETURN(vocab.bos_id, file.GetInt("tokenizer.ggml.bos_token_id"));
  }
  if (file.Has("tokenizer.ggml.eos_token_id")) {
    BATON_ASSIGN_OR_RETURN(vocab.eos_id, file.GetInt("tokenizer.ggml.eos_token_id"));
  }
  if (file.Has("tokenizer.ggml.unknown_token_id")) {
    BATON_ASSIGN_OR_RETURN(vocab.unk_id, file.GetInt("tokenizer.ggml.unknown_token_id"));
  }
  if (file.Has("tokenizer.ggml.add_space_prefix")) {
    BATON_ASSIGN_OR_RETURN(vocab.add_space_prefix, file.GetBool("tokenizer.ggml.add_space_prefix"));
  }
  if (file.Has("tokenizer.ggml.remove_extra_whitespaces")) {
    BATON_ASSIGN_OR_RETURN(vocab.remove_extra_whitespaces,
                           file.GetBool("tokenizer.ggml.remove_extra_whitespaces"));
  }
  if (file.Has("tokenizer.ggml.add_bos_token")) {
    BATON_ASSIGN_OR_RETURN(vocab.add_bos, file.GetBool("tokenizer.ggml.add_bos_token"));
  }
  return vocab;
}

}  // namespace baton
