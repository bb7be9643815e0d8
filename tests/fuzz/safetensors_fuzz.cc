// A safetensors file: whatever is accepted tiles the data exactly.
#include "common/weights/safetensors.h"
#include "tests/fuzz/fuzz_util.h"

namespace baton {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const FuzzFile bytes(FuzzText(data, size));
  const auto file = SafetensorsFile::Open(bytes.path());
  if (!file.ok()) {
    CheckError(file.status());
    FUZZ_CHECK(file.status().message().find(bytes.path()) != std::string_view::npos);
    return 0;
  }
  unsigned sum = 0;
  size_t total = 0;
  const std::byte* next = nullptr;
  for (const TensorView& view : (*file)->tensors()) {
    const auto expected = TensorBytes(view.dtype, view.shape);
    FUZZ_CHECK(expected.ok() && *expected == static_cast<int64_t>(view.nbytes));
    FUZZ_CHECK(view.shape.size() <= kMaxTensorRank);
    FUZZ_CHECK((*file)->Find(view.name) == &view);
    if (view.nbytes == 0) continue;
    FUZZ_CHECK(next == nullptr || next == view.data);
    next = view.data + view.nbytes;
    total += view.nbytes;
    for (size_t i = 0; i < view.nbytes; ++i) sum += static_cast<unsigned>(view.data[i]);
  }
  FUZZ_CHECK(total + 8 <= size);
  static volatile unsigned sink;
  sink = sum;
  return 0;
}

}  // namespace baton
