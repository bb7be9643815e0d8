// tokenizer.json, a line "---", tokenizer_config.json, a line "---", a text to encode.
#include "common/tokenizer/tokenizer.h"
#include "tests/fuzz/fuzz_util.h"
#include "tests/fuzz/tokenizer_checks.h"

namespace baton {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parts = FuzzParts(FuzzText(data, size), 3);
  CheckRead(Tokenizer::FromJson(parts[0], parts[1]), parts[2]);
  return 0;
}

}  // namespace baton
