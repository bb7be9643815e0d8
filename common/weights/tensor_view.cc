#include "common/weights/tensor_view.h"

#include <array>

#include "absl/status/status.h"
#include "absl/strings/str_join.h"
#include "common/base/strings.h"

namespace baton {
namespace {

struct DTypeInfo {
  std::string_view name;
  int64_t elements;
  int64_t bytes;
};

constexpr std::array<DTypeInfo, 23> kDTypes = {{
    {"F32", 1, 4},      {"F16", 1, 2},    {"BF16", 1, 2},    {"Q8_0", 32, 34},   {"Q4_0", 32, 18},
    {"Q4_1", 32, 20},   {"Q5_0", 32, 22}, {"Q5_1", 32, 24},  {"Q4_K", 256, 144}, {"Q5_K", 256, 176},
    {"Q6_K", 256, 210}, {"F64", 1, 8},    {"F8_E4M3", 1, 1}, {"F8_E5M2", 1, 1},  {"I8", 1, 1},
    {"I16", 1, 2},      {"I32", 1, 4},    {"I64", 1, 8},     {"U8", 1, 1},       {"U16", 1, 2},
    {"U32", 1, 4},      {"U64", 1, 8},    {"BOOL", 1, 1},
}};
static_assert(static_cast<size_t>(StoredDType::kBool) + 1 == kDTypes.size());

const DTypeInfo& Info(StoredDType dtype) { return kDTypes[static_cast<size_t>(dtype)]; }

}  // namespace

std::string_view DTypeName(StoredDType dtype) { return Info(dtype).name; }
int64_t DTypeBlockElements(StoredDType dtype) { return Info(dtype).elements; }
int64_t DTypeBlockBytes(StoredDType dtype) { return Info(dtype).bytes; }

std::string ShapeString(const std::vector<int64_t>& shape) {
  return Cat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<int64_t> TensorBytes(StoredDType dtype, const std::vector<int64_t>& shape) {
  int64_t elements = 1;
  for (int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(elements, dim, &elements)) {
      return absl::InvalidArgumentError(Cat("shape ", ShapeString(shape), " is too large"));
    }
  }
  const DTypeInfo& info = Info(dtype);
  const int64_t row = shape.empty() ? 1 : shape.back();
  if (row % info.elements != 0) {
    return absl::InvalidArgumentError(
        Cat("a row of ", row, " elements is not whole ", info.name, " blocks of ", info.elements));
  }
  int64_t bytes = 0;
  if (__builtin_mul_overflow(elements / info.elements, info.bytes, &bytes)) {
    return absl::InvalidArgumentError(Cat("shape ", ShapeString(shape), " is too large"));
  }
  return bytes;
}

}  // namespace baton
