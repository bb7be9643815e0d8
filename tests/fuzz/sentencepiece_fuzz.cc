// A text to encode, a line "---", a SentencePiece .model.
#include "common/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz_util.h"
#include "tests/fuzz/tokenizer_checks.h"

namespace baton {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parts = FuzzParts(FuzzText(data, size), 2);
  CheckRead(Tokenizer::FromVocabulary(parts[1]), parts[0]);
  return 0;
}

}  // namespace baton
