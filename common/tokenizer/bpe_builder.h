// TokenizerSpec -> what BpeModel works with.
#pragma once

#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/tokenizer_spec.h"

namespace baton {

// `ids`: the tokens of `spec` by text. Added tokens are among its tokens. Errors: InvalidArgument
// for a merge whose parts or result are no tokens.
absl::StatusOr<BpeVocabulary> BuildBpeVocabulary(
    const TokenizerSpec& spec, const absl::flat_hash_map<std::string, int32_t>& ids);

// What a token of the vocabulary stands for in text, as the decoder says.
std::string BytesOfToken(const TokenizerSpec& spec, const std::string& token);
// The same for an added token: a byte-level vocabulary doesn't spell it in its alphabet.
std::string BytesOfAddedToken(const TokenizerSpec& spec, std::string text);

}  // namespace baton
