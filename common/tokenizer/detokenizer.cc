#include "common/tokenizer/detokenizer.h"

namespace baton {

std::string Detokenizer::Push(int32_t id) {
  std::string text;
  if (!(skip_special_ && tokenizer_.IsSpecial(id))) {
    repairer_.Push(tokenizer_.TokenBytes(id), &text);
  }
  return text;
}

std::string Detokenizer::Flush() {
  std::string text;
  repairer_.Flush(&text);
  return text;
}

}  // namespace baton
