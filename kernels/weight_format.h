// How a packed weight matrix holds its values. (What kernels compute with and what a KV page holds
// is a DType.)
//
// The quantised formats are those of GGUF files, value for value: a weight is d * q or d * q + m
// with codes q of 4 to 8 bits and scales per block along the inner dimension (quant_blocks.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/hd.h"

namespace baton {

enum class WeightFormat : std::uint8_t {
  kF32,
  kBF16,
  kF16,
  kQ8_0,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ4_K,
  kQ5_K,
  kQ6_K,
};
inline constexpr int kWeightFormats = 11;

BATON_HD constexpr WeightFormat FormatOf(DType dtype) {
  return dtype == DType::kF32    ? WeightFormat::kF32
         : dtype == DType::kBF16 ? WeightFormat::kBF16
                                 : WeightFormat::kF16;
}

BATON_HD constexpr bool IsQuantised(WeightFormat f) { return f > WeightFormat::kF16; }

// Quantised formats that fp32 weights can be packed into (quantize.h); the others are only taken
// as stored.
BATON_HD constexpr bool CanQuantise(WeightFormat f) {
  return f == WeightFormat::kQ8_0 || f == WeightFormat::kQ4_1;
}

BATON_HD constexpr const char* FormatName(WeightFormat f) {
  constexpr const char* kNames[kWeightFormats] = {"fp32", "bf16", "fp16", "q8_0", "q4_0", "q4_1",
                                                  "q5_0", "q5_1", "q4_k", "q5_k", "q6_k"};
  return kNames[static_cast<int>(f)];
}

// Elements of a stored block and its bytes; 1 and the element's size for plain formats.
BATON_HD constexpr std::int64_t StoredBlockElements(WeightFormat f) {
  return !IsQuantised(f) ? 1 : f >= WeightFormat::kQ4_K ? 256 : 32;
}
BATON_HD constexpr std::int64_t StoredBlockBytes(WeightFormat f) {
  constexpr std::int64_t kBytes[kWeightFormats] = {4, 2, 2, 34, 18, 20, 22, 24, 144, 176, 210};
  return kBytes[static_cast<int>(f)];
}
// Bytes of a stored row; `cols` is whole blocks.
BATON_HD constexpr std::int64_t StoredRowBytes(WeightFormat f, std::int64_t cols) {
  return cols / StoredBlockElements(f) * StoredBlockBytes(f);
}

// Bytes that one row of `cols` weights takes in a packed matrix. Quantised rows are padded to a
// multiple of 32.
BATON_HD constexpr std::int64_t PackedRowBytes(WeightFormat f, std::int64_t cols) {
  constexpr std::int64_t kPer32[kWeightFormats] = {128, 64, 64, 34, 18, 20, 22, 24, 22, 26, 28};
  const std::int64_t per32 = kPer32[static_cast<int>(f)];
  return IsQuantised(f) ? (cols + 31) / 32 * per32 : cols * per32 / 32;
}

}  // namespace baton
