#include "common/tokenizer/detokenizer.h"

#include <utility>

namespace baton {

std::string Detokenizer::Push(int32_t id) {
  std::string text;
  if (!(skip_special_ && tokenizer_.IsSpecial(id))) {
    repairer_.Push(tokenizer_.TokenBytes(id), &text);
  }
  return strip_left_ > 0 ? WithoutLeadingSpaces(std::move(text)) : text;
}

std::string Detokenizer::Flush() {
  std::string text;
  repairer_.Flush(&text);
  strip_left_ = continues_text_ ? 0 : tokenizer_.leading_spaces();
  return text;
}

std::string Detokenizer::WithoutLeadingSpaces(std::string text) {
  size_t spaces = 0;
  while (strip_left_ > 0 && spaces < text.size() && text[spaces] == ' ') {
    ++spaces;
    --strip_left_;
  }
  if (spaces < text.size()) strip_left_ = 0;
  return text.substr(spaces);
}

}  // namespace baton
