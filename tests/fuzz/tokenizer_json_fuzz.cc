// tokenizer.json, a line "---", tokenizer_config.json, a line "---", a text to encode.
#include "common/base/utf8.h"
#include "common/tokenizer/detokenizer.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz_util.h"

namespace baton {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parts = FuzzParts(FuzzText(data, size), 3);
  const auto tokenizer = Tokenizer::FromJson(parts[0], parts[1]);
  if (!tokenizer.ok()) {
    CheckError(tokenizer.status());
    return 0;
  }
  const Tokenizer& t = **tokenizer;
  const auto again = Tokenizer::FromJson(t.Serialize());
  FUZZ_CHECK(again.ok());
  FUZZ_CHECK((*again)->Serialize() == t.Serialize());
  FUZZ_CHECK((*again)->digest() == t.digest());
  FUZZ_CHECK((*again)->content_digest() == t.content_digest());
  FUZZ_CHECK((*again)->bos_id() == t.bos_id() && (*again)->eos_id() == t.eos_id());
  FUZZ_CHECK((*again)->adds_bos() == t.adds_bos());

  for (const bool parse_special : {false, true}) {
    const auto ids = t.Encode(parts[2], {.parse_special = parse_special, .add_bos = true});
    FUZZ_CHECK(ids.ok() || !IsValidUtf8(parts[2]) ||
               ids.status().code() == absl::StatusCode::kResourceExhausted);
    if (!ids.ok()) continue;
    for (const int32_t id : *ids) FUZZ_CHECK(id >= 0 && id < t.vocab_size());
    FUZZ_CHECK(*(*again)->Encode(parts[2], {.parse_special = parse_special, .add_bos = true}) ==
               *ids);
    const auto text = t.Decode(*ids);
    FUZZ_CHECK(text.ok() && IsValidUtf8(*text));
    Detokenizer stream(t, /*skip_special=*/false);
    std::string streamed;
    for (const int32_t id : *ids) streamed += stream.Push(id);
    FUZZ_CHECK(streamed + stream.Flush() == *text);
  }
  return 0;
}

}  // namespace baton
