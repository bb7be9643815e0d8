#include "router/gateway/prompt_echo.h"

#include <algorithm>
#include <utility>

namespace baton {
namespace {

bool Continues(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) == 0x80; }

int64_t CharactersBegun(std::string_view bytes) {
  return std::count_if(bytes.begin(), bytes.end(), [](char c) { return !Continues(c); });
}

}  // namespace

int64_t TokenOffsets::Next(std::string_view bytes) {
  const bool inside = !bytes.empty() && Continues(bytes.front()) && characters_ > 0;
  const int64_t offset = characters_ - (inside ? 1 : 0);
  characters_ += CharactersBegun(bytes);
  return offset;
}

PromptEcho::PromptEcho(std::optional<std::string> text) : from_tokens_(!text.has_value()) {
  if (from_tokens_) return;
  text_ = *std::move(text);
  rest_ = text_;
  characters_ = CharactersBegun(text_);
}

std::string PromptEcho::TakeText() { return std::exchange(text_, {}); }

int64_t PromptEcho::Next(std::string_view bytes) {
  if (from_tokens_) {
    // Characters still open are not counted yet, so this is where the token's first one stands.
    const int64_t offset = characters_;
    std::string known;
    repairer_.Push(bytes, &known);
    characters_ += CharactersBegun(known);
    text_ += known;
    return offset;
  }
  if (rest_.compare(0, bytes.size(), bytes) != 0 && !began_) {
    const bool marker = bytes.size() > 1 && bytes.front() == ' ';
    bytes.remove_prefix(marker ? 1 : bytes.size());
    if (rest_.compare(0, bytes.size(), bytes) != 0) bytes = {};
  }
  began_ = began_ || !bytes.empty();
  const std::string shown = rest_.substr(0, bytes.size());
  rest_.erase(0, shown.size());
  return offsets_.Next(shown);
}

void PromptEcho::Finish() {
  std::string known;
  repairer_.Flush(&known);
  characters_ += CharactersBegun(known);
  text_ += known;
}

}  // namespace baton
