// Any text through a byte-level BPE: decoding gives it back, streaming equals decoding at once,
// pieces equal the whole. The first byte chooses the split pattern.
#include <array>

#include "common/base/utf8.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/detokenizer.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/fuzz_util.h"

namespace baton {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kLlama3Pattern =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|)"
    R"(\s*[\r\n]+|\s+(?!\S)|\s+)";

// All 256 bytes and some merges, two specials.
std::unique_ptr<Tokenizer> Make(std::string_view pattern) {
  Json vocab = Json::object();
  const auto spelled = [](std::string_view bytes) {
    std::string out;
    for (const char byte : bytes) out += ByteLevelSpelling(static_cast<uint8_t>(byte));
    return out;
  };
  for (int b = 0; b < 256; ++b) vocab[spelled(std::string(1, static_cast<char>(b)))] = b;
  Json merges = Json::array();
  for (const auto& [left, right] :
       std::vector<std::pair<std::string, std::string>>{{" ", "t"},
                                                        {"h", "e"},
                                                        {" t", "he"},
                                                        {"a", "a"},
                                                        {"aa", "aa"},
                                                        {"\xE2", "\x80"},
                                                        {"\xE2\x80", "\x8B"},
                                                        {"\xF0", "\x9F"},
                                                        {" ", " "},
                                                        {"  ", "  "},
                                                        {"\n", "\n"},
                                                        {"1", "2"},
                                                        {"'", "s"},
                                                        {"\xC3", "\xA9"}}) {
    merges.push_back(Json::array({spelled(left), spelled(right)}));
    vocab[spelled(left + right)] = vocab.size();
  }
  const int64_t specials = static_cast<int64_t>(vocab.size());
  Json pre = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", pattern.empty()}};
  if (!pattern.empty()) {
    pre = {{"type", "Sequence"},
           {"pretokenizers",
            {{{"type", "Split"},
              {"pattern", {{"Regex", pattern}}},
              {"behavior", "Isolated"},
              {"invert", false}},
             pre}}};
  }
  Json added = Json::array();
  for (const char* name : {"<|im_start|>", "<|im_end|>"}) {
    added.push_back({{"id", specials + static_cast<int64_t>(added.size())},
                     {"content", name},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const Json json = {{"version", "1.0"},
                     {"added_tokens", added},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", pre},
                     {"post_processor", nullptr},
                     {"decoder", {{"type", "ByteLevel"}}},
                     {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
  auto tokenizer = Tokenizer::FromJson(json.dump());
  if (!tokenizer.ok()) std::fprintf(stderr, "%s\n", tokenizer.status().ToString().c_str());
  FUZZ_CHECK(tokenizer.ok());
  return *std::move(tokenizer);
}

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
  static const auto* const kTokenizers =
      new std::array<std::unique_ptr<Tokenizer>, 2>{Make(""), Make(kLlama3Pattern)};
  if (size == 0) return 0;
  const Tokenizer& t = *(*kTokenizers)[data[0] % kTokenizers->size()];
  const std::string_view text = FuzzText(data, size).substr(1);
  CheckText(t, text, false);
  CheckText(t, text, true);
  return 0;
}

}  // namespace baton
