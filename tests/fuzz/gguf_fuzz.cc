// A GGUF file: container, model shape, vocabulary.
#include "common/tokenizer/gguf_vocab.h"
#include "common/tokenizer/tokenizer.h"
#include "common/weights/gguf.h"
#include "common/weights/model_config.h"
#include "tests/fuzz/fuzz_util.h"
#include "tests/fuzz/tokenizer_checks.h"

namespace baton {
namespace {

// Every byte a view promises can be read and lies in the file.
void CheckTensors(const GgufFile& file, size_t file_bytes) {
  unsigned sum = 0;
  for (const TensorView& view : file.tensors()) {
    const auto bytes = TensorBytes(view.dtype, view.shape);
    FUZZ_CHECK(bytes.ok() && *bytes == static_cast<int64_t>(view.nbytes));
    FUZZ_CHECK(view.nbytes <= file_bytes);
    for (size_t i = 0; i < view.nbytes; ++i) sum += static_cast<unsigned>(view.data[i]);
    FUZZ_CHECK(file.Find(view.name) == &view);
  }
  static volatile unsigned sink;
  sink = sum;
}

// A key has exactly one type, and an array as many elements as it says.
void CheckKey(const GgufFile& file, std::string_view key) {
  FUZZ_CHECK(file.Has(key));
  const bool scalar = file.GetString(key).ok() || file.GetInt(key).ok() ||
                      file.GetFloat(key).ok() || file.GetBool(key).ok();
  const auto length = file.GetArrayLength(key);
  FUZZ_CHECK(!(scalar && length.ok()));
  if (!length.ok()) return;
  if (const auto v = file.GetStringArray(key); v.ok()) {
    FUZZ_CHECK(static_cast<int64_t>(v->size()) == *length);
  }
  if (const auto v = file.GetIntArray(key); v.ok()) {
    FUZZ_CHECK(static_cast<int64_t>(v->size()) == *length);
  }
  if (const auto v = file.GetFloatArray(key); v.ok()) {
    FUZZ_CHECK(static_cast<int64_t>(v->size()) == *length);
  }
}

void CheckVocab(const GgufFile& file) {
  const auto vocab = ReadGgufVocab(file);
  if (!vocab.ok()) return CheckError(vocab.status());
  const auto tokenizer = Tokenizer::FromGguf(*vocab);
  if (!tokenizer.ok()) return CheckError(tokenizer.status());
  CheckTokenizer(**tokenizer, "ab a <s> \xC3\xA9\n");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const FuzzFile bytes(FuzzText(data, size));
  const auto file = GgufFile::Open(bytes.path());
  if (!file.ok()) {
    CheckError(file.status());
    FUZZ_CHECK(file.status().message().find(bytes.path()) != std::string_view::npos);
    return 0;
  }
  CheckTensors(**file, size);
  for (const std::string_view key : (*file)->Keys()) CheckKey(**file, key);
  if (const auto config = ParseGgufConfig(**file); !config.ok()) CheckError(config.status());
  CheckVocab(**file);
  return 0;
}

}  // namespace baton
