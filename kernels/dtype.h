// Element types that kernels read and write. C++17, host and device.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/hd.h"

namespace baton {

enum class DType : std::uint8_t { kF32 = 0, kBF16 = 1, kF16 = 2 };

BATON_HD constexpr std::size_t DTypeSize(DType t) { return t == DType::kF32 ? 4 : 2; }

constexpr const char* DTypeName(DType t) {
  return t == DType::kF32 ? "fp32" : t == DType::kBF16 ? "bf16" : "fp16";
}

}  // namespace baton
