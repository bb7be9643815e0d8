// One stored value of a dtype known at compile time, and its way from and to fp32.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/convert_math.h"
#include "kernels/dtype.h"

namespace baton {

template <DType D>
using Element = std::conditional_t<D == DType::kF32, float, std::uint16_t>;

// Nearest even.
template <DType D>
Element<D> FromFloat(float x) {
  if constexpr (D == DType::kF32) {
    return x;
  } else if constexpr (D == DType::kBF16) {
    return FloatToBf16(x);
  } else {
    static_assert(D == DType::kF16);
    return FloatToHalf(x);
  }
}

template <DType D>
float ToFloat(Element<D> x) {
  if constexpr (D == DType::kF32) {
    return x;
  } else if constexpr (D == DType::kBF16) {
    return Bf16ToFloat(x);
  } else {
    static_assert(D == DType::kF16);
    return HalfToFloat(x);
  }
}

}  // namespace baton
