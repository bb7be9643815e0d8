// Stored weights -> fp32. Block layouts are ggml's (kernels/quant_blocks.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "common/weights/tensor_view.h"
#include "kernels/quant_blocks.h"

namespace baton {

// What IsDequantizable accepts, for messages.
inline constexpr std::string_view kDequantizableTypes =
    "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K and Q6_K";
bool IsDequantizable(StoredDType dtype);

// Converts `n` elements at `src` (any alignment) to `dst` [n]. Errors: Unimplemented for a dtype
// that is not dequantizable, InvalidArgument if `n` is not whole blocks.
absl::Status DequantizeRow(StoredDType dtype, const std::byte* src, float* dst, int64_t n);

}  // namespace baton
