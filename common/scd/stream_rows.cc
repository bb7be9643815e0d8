#include "common/scd/stream_rows.h"

#include <cstring>

#include "kernels/convert_math.h"

namespace baton {

void EncodeStreamRows(const float* states, std::int64_t rows, std::int64_t hidden, std::byte* out) {
  for (std::int64_t r = 0; r < rows; ++r, states += hidden + 1) {
    std::memcpy(out, states + hidden, sizeof(float));
    out += sizeof(float);
    for (std::int64_t i = 0; i < hidden; ++i, out += sizeof(std::uint16_t)) {
      const std::uint16_t half = FloatToHalf(states[i]);
      std::memcpy(out, &half, sizeof(half));
    }
  }
}

void DecodeStreamRows(const std::byte* rows_bytes, std::int64_t rows, std::int64_t hidden,
                      float* stream) {
  for (std::int64_t r = 0; r < rows; ++r, stream += hidden) {
    float rms;
    std::memcpy(&rms, rows_bytes, sizeof(rms));
    rows_bytes += sizeof(rms);
    for (std::int64_t i = 0; i < hidden; ++i, rows_bytes += sizeof(std::uint16_t)) {
      std::uint16_t half;
      std::memcpy(&half, rows_bytes, sizeof(half));
      stream[i] = rms * HalfToFloat(half);
    }
  }
}

}  // namespace baton
