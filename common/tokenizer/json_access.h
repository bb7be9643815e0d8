// Reading JSON that may hold anything: absent keys are null, wrong types are errors.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/tokenizer/tokenizer_spec.h"
#include "nlohmann/json.hpp"

namespace baton::tokenizer_json {

using Json = nlohmann::json;

// The value of `key`, or null when absent or when `object` isn't one.
inline const Json& At(const Json& object, const char* key) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto it = object.find(key);
  return it == object.end() ? null : *it;
}

inline std::string StringOr(const Json& object, const char* key, std::string_view fallback) {
  const Json& value = At(object, key);
  return value.is_string() ? value.get<std::string>() : std::string(fallback);
}

inline std::string TypeOf(const Json& part) { return StringOr(part, "type", ""); }

inline absl::StatusOr<bool> BoolOr(const Json& object, const char* key, bool fallback) {
  const Json& value = At(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) {
    return absl::InvalidArgumentError(Cat("tokenizer: ", key, " must be true or false"));
  }
  return value.get<bool>();
}

inline absl::StatusOr<int32_t> TokenId(const Json& value, std::string_view what) {
  if (!value.is_number_integer() || value < 0 || value >= kMaxVocab) {
    return absl::InvalidArgumentError(
        Cat("tokenizer: id of ", what, " must be an integer in [0, ", kMaxVocab, ")"));
  }
  return value.get<int32_t>();
}

// An entry of added_tokens or added_tokens_decoder, without its id.
inline absl::StatusOr<AddedToken> ReadAddedToken(const Json& token) {
  AddedToken added;
  added.content = StringOr(token, "content", "");
  if (added.content.empty()) {
    return absl::InvalidArgumentError("tokenizer: an added token has no content");
  }
  BATON_ASSIGN_OR_RETURN(added.special, BoolOr(token, "special", false));
  BATON_ASSIGN_OR_RETURN(added.normalized, BoolOr(token, "normalized", !added.special));
  BATON_ASSIGN_OR_RETURN(added.single_word, BoolOr(token, "single_word", false));
  BATON_ASSIGN_OR_RETURN(added.lstrip, BoolOr(token, "lstrip", false));
  BATON_ASSIGN_OR_RETURN(added.rstrip, BoolOr(token, "rstrip", false));
  return added;
}

}  // namespace baton::tokenizer_json
