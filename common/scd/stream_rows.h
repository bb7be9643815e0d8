// Rows of a residual stream as they travel: normalised, in fp16, behind what they were divided by.
//
//   row: fp32 rms, fp16 x[hidden];   stream = rms * x
//
// Little-endian. A stream as it is may have channels beyond fp16's 65504; a normalised row has
// nothing above sqrt(hidden). What fp16 rounds is 2^-11 of a number, or 2^-25 of the rms for
// numbers below 2^-14 of it: less than what the norm of the layer lets through.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baton {

constexpr std::size_t StreamRowBytes(std::int64_t hidden) {
  return sizeof(float) + sizeof(std::uint16_t) * static_cast<std::size_t>(hidden);
}

// states [rows, hidden + 1]: x, then rms; as an engine reports them. `out` has rows *
// StreamRowBytes(hidden).
void EncodeStreamRows(const float* states, std::int64_t rows, std::int64_t hidden, std::byte* out);
// Into stream [rows, hidden].
void DecodeStreamRows(const std::byte* rows_bytes, std::int64_t rows, std::int64_t hidden,
                      float* stream);

}  // namespace baton
