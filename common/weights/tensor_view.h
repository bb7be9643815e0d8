// A tensor inside a mapped weights file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

// Every element or block format the readers know the size of. IsDequantizable says which of them
// Baton can also read. (Kernels compute in DType, kernels/dtype.h.)
enum class StoredDType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
  kF64,
  kF8E4M3,
  kF8E5M2,
  kI8,
  kI16,
  kI32,
  kI64,
  kU8,
  kU16,
  kU32,
  kU64,
  kBool,
};

std::string_view DTypeName(StoredDType dtype);
// Elements in one block (1 for plain types) and its size in bytes.
int64_t DTypeBlockElements(StoredDType dtype);
int64_t DTypeBlockBytes(StoredDType dtype);

// Bytes of a row of `n` elements; `n` is a multiple of the block.
inline int64_t DTypeRowBytes(StoredDType dtype, int64_t n) {
  return n / DTypeBlockElements(dtype) * DTypeBlockBytes(dtype);
}

struct TensorView {
  std::string name;  // as the file spells it
  StoredDType dtype = StoredDType::kF32;
  std::vector<int64_t> shape;       // outermost dimension first (PyTorch order), also for GGUF
  const std::byte* data = nullptr;  // row-major; in the mapped file, maybe unaligned; null if empty
  size_t nbytes = 0;

  int64_t elements() const {
    int64_t n = 1;
    for (int64_t dim : shape) n *= dim;
    return n;
  }
};

// "[576, 192]"
std::string ShapeString(const std::vector<int64_t>& shape);

// Bytes of a tensor. Errors: InvalidArgument for a negative dimension, a product beyond int64, or a
// row that is not whole blocks.
absl::StatusOr<int64_t> TensorBytes(StoredDType dtype, const std::vector<int64_t>& shape);

}  // namespace baton
