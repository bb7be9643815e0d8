// A text to encode, a line "---", a .tiktoken vocabulary.
#include "common/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz_util.h"
#include "tests/fuzz/tokenizer_checks.h"

namespace baton {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parts = FuzzParts(FuzzText(data, size), 2);
  const auto tokenizer = Tokenizer::FromVocabulary(parts[1]);
  if (!tokenizer.ok()) {
    CheckError(tokenizer.status());
    return 0;
  }
  CheckTokenizer(**tokenizer, parts[0]);
  return 0;
}

}  // namespace baton
