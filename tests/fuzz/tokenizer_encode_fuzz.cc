// Any text through a byte-level BPE: decoding gives it back, streaming equals decoding at once,
// pieces equal the whole. The first byte chooses the split pattern.
#include <array>

#include "common/base/utf8.h"
#include "common/tokenizer/detokenizer.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/fuzz/byte_level_tokenizer.h"
#include "tests/fuzz/fuzz_util.h"

namespace baton {
namespace {

constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

// Both the special tokens' text and their ids must survive.
void CheckText(const Tokenizer& t, std::string_view text, bool parse_special) {
  const auto ids = t.Encode(text, {.parse_special = parse_special});
  if (!ids.ok()) {
    FUZZ_CHECK(!IsValidUtf8(text) || ids.status().code() == absl::StatusCode::kResourceExhausted);
    return;
  }
  FUZZ_CHECK(IsValidUtf8(text));
  FUZZ_CHECK(*t.Decode(*ids) == text);
  if (!parse_special) {
    for (const int32_t id : *ids) FUZZ_CHECK(!t.IsSpecial(id));
  }
  Detokenizer stream(t, /*skip_special=*/false);
  std::string streamed;
  for (const int32_t id : *ids) {
    const std::string delta = stream.Push(id);
    FUZZ_CHECK(IsValidUtf8(delta));
    streamed += delta;
  }
  FUZZ_CHECK(streamed + stream.Flush() == text);

  size_t middle = text.size() / 2;
  while (middle > 0 && middle < text.size() &&
         (static_cast<uint8_t>(text[middle]) & 0xC0) == 0x80) {
    --middle;
  }
  if (parse_special) return;  // a boundary inside "<|im_end|>" makes it ordinary text
  const std::array<TextPiece, 2> pieces = {
      {{text.substr(0, middle), false}, {text.substr(middle), false}}};
  FUZZ_CHECK(*t.EncodePieces(pieces) == *ids);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto& kSpecials = *new std::vector<std::string>{"<|im_start|>", "<|im_end|>"};
  static const auto* const kTokenizers = new std::array<std::unique_ptr<Tokenizer>, 2>{
      MakeByteLevelTokenizer("", kSpecials), MakeByteLevelTokenizer(kLlama3Pattern, kSpecials)};
  if (size == 0) return 0;
  const Tokenizer& t = *(*kTokenizers)[data[0] % kTokenizers->size()];
  const std::string_view text = FuzzText(data, size).substr(1);
  CheckText(t, text, false);
  CheckText(t, text, true);
  return 0;
}

}  // namespace baton
