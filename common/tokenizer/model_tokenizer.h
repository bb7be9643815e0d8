// The tokenizer of a model's files, from whichever form they have it in. A template, so that this
// room and the readers of weights (of the same layer) need not know each other.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/gguf_vocab.h"
#include "common/tokenizer/tokenizer.h"

namespace baton {

// `source`: a ModelSource. NOT_FOUND when it has no tokenizer, else as Tokenizer's factories.
template <typename Source>
absl::StatusOr<std::unique_ptr<Tokenizer>> ReadModelTokenizer(const Source& source) {
  if (source.gguf() != nullptr) {
    BATON_ASSIGN_OR_RETURN(const GgufVocab vocab, ReadGgufVocab(*source.gguf()));
    return Tokenizer::FromGguf(vocab);
  }
  if (!source.tokenizer_json().empty()) {
    return Tokenizer::FromJson(source.tokenizer_json(), source.tokenizer_config_json());
  }
  if (!source.tokenizer_vocabulary().empty()) {
    return Tokenizer::FromVocabulary(source.tokenizer_vocabulary(), source.tokenizer_config_json());
  }
  return absl::NotFoundError(source.path() + ": no tokenizer.json, tokenizer.model or *.tiktoken");
}

}  // namespace baton
