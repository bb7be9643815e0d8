// What every tokenizer that loads must keep.
#pragma once

#include <string>
#include <string_view>

#include "common/base/utf8.h"
#include "common/tokenizer/detokenizer.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz_util.h"

namespace baton {

// Serialising loses nothing.
inline std::unique_ptr<Tokenizer> CheckSerialised(const Tokenizer& t) {
  auto again = Tokenizer::FromJson(t.Serialize());
  if (!again.ok()) std::fprintf(stderr, "%s\n", again.status().ToString().c_str());
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK((*again)->Serialize() == t.Serialize());
  FUZZ_CHECK((*again)->digest() == t.digest());
  FUZZ_CHECK((*again)->content_digest() == t.content_digest());
  FUZZ_CHECK((*again)->bos_id() == t.bos_id() && (*again)->eos_id() == t.eos_id());
  FUZZ_CHECK((*again)->adds_bos() == t.adds_bos());
  return *std::move(again);
}

// Ids exist, the serialised tokenizer gives the same, streaming equals decoding at once.
inline void CheckTokenizer(const Tokenizer& t, std::string_view text) {
  const auto again = CheckSerialised(t);
  for (const bool parse_special : {false, true}) {
    const EncodeOptions options{.parse_special = parse_special, .add_bos = true};
    const auto ids = t.Encode(text, options);
    FUZZ_CHECK(ids.ok() || !IsValidUtf8(text) ||
               ids.status().code() == absl::StatusCode::kResourceExhausted);
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) FUZZ_CHECK(id >= 0 && id < t.vocab_size());
    const auto same = again->Encode(text, options);
    FUZZ_CHECK(same.ok() && *same == *ids);
    const auto decoded = t.Decode(*ids);
    FUZZ_CHECK(decoded.ok() && IsValidUtf8(*decoded));
    Detokenizer stream(t, /*skip_special=*/false);
    std::string streamed;
    for (const int32_t id : *ids) {
      const std::string delta = stream.Push(id);
      FUZZ_CHECK(IsValidUtf8(delta));
      streamed += delta;
    }
    FUZZ_CHECK(streamed + stream.Flush() == *decoded);
  }
}

// What a reader gave: an error that says something, or a tokenizer that keeps all that for `text`.
inline void CheckRead(const absl::StatusOr<std::unique_ptr<Tokenizer>>& tokenizer,
                      std::string_view text) {
  if (!tokenizer.ok()) return CheckError(tokenizer.status());
  CheckTokenizer(**tokenizer, text);
}

}  // namespace baton
