#include "kernels/codes.h"

#include <cmath>

namespace baton {
namespace {

void QuantizeInt8(const float* x, std::uint8_t* codes, std::uint16_t* scales) {
  float max_abs = 0.0f;
  for (int i = 0; i < kCodeBlock; ++i) max_abs = MaxT(std::fabs(x[i]), max_abs);
  const float d = Int8Scale(max_abs), inverse = InverseScale(d);
  scales[0] = FloatToHalf(d);
  for (int i = 0; i < kCodeBlock; ++i) {
    codes[i] = static_cast<std::uint8_t>(Int8Code(x[i], inverse));
  }
}

void QuantizeInt4(const float* x, std::uint8_t* codes, std::uint16_t* scales) {
  float min = x[0], max = x[0];
  for (int i = 1; i < kCodeBlock; ++i) {
    min = MinT(x[i], min);
    max = MaxT(x[i], max);
  }
  const float d = Int4Scale(min, max), inverse = InverseScale(d);
  scales[0] = FloatToHalf(d);
  scales[1] = FloatToHalf(min);
  for (int i = 0; i < kCodeBlock / 2; ++i) {
    codes[i] = static_cast<std::uint8_t>(Int4Code(x[i], min, inverse) |
                                         Int4Code(x[i + kCodeBlock / 2], min, inverse) << 4);
  }
}

void Dequantize(CodeType type, const std::uint8_t* codes, const std::uint16_t* scales, float* y) {
  const float d = HalfToFloat(scales[0]);
  if (type == CodeType::kInt8) {
    for (int i = 0; i < kCodeBlock; ++i) {
      y[i] = DecodeInt8(static_cast<float>(static_cast<std::int8_t>(codes[i])), d);
    }
    return;
  }
  const float m = HalfToFloat(scales[1]);
  for (int i = 0; i < kCodeBlock / 2; ++i) {
    y[i] = DecodeInt4(static_cast<float>(codes[i] & 15), d, m);
    y[i + kCodeBlock / 2] = DecodeInt4(static_cast<float>(codes[i] >> 4), d, m);
  }
}

}  // namespace

void QuantizeRows(const float* x, std::int64_t ldx, std::int64_t n, std::int64_t d, CodeType type,
                  std::uint8_t* codes, std::uint16_t* scales, Executor& executor) {
  const std::int64_t blocks = d / kCodeBlock;
  executor.ParallelFor(n * blocks, 512, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      const float* src = x + b / blocks * ldx + b % blocks * kCodeBlock;
      auto* fn = type == CodeType::kInt8 ? QuantizeInt8 : QuantizeInt4;
      fn(src, codes + b * CodeBlockBytes(type), scales + b * CodeBlockScales(type));
    }
  });
}

void DequantizeRows(const std::uint8_t* codes, const std::uint16_t* scales, std::int64_t n,
                    std::int64_t d, CodeType type, float* y, std::int64_t ldy, Executor& executor) {
  const std::int64_t blocks = d / kCodeBlock;
  executor.ParallelFor(n * blocks, 512, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t b = begin; b < end; ++b) {
      Dequantize(type, codes + b * CodeBlockBytes(type), scales + b * CodeBlockScales(type),
                 y + b / blocks * ldy + b % blocks * kCodeBlock);
    }
  });
}

void MultiplyCodes(const std::uint8_t* codes, const std::uint16_t* scales, CodeType type,
                   std::int64_t rows, std::int64_t cols, const float* x, std::int64_t ldx,
                   std::int64_t n, float* y, std::int64_t ldy, Executor& executor) {
  const std::int64_t blocks = cols / kCodeBlock;
  executor.ParallelFor(rows, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      for (std::int64_t i = 0; i < n; ++i) y[i * ldy + r] = 0.0f;
      for (std::int64_t b = 0; b < blocks; ++b) {
        float w[kCodeBlock];
        Dequantize(type, codes + (r * blocks + b) * CodeBlockBytes(type),
                   scales + (r * blocks + b) * CodeBlockScales(type), w);
        for (std::int64_t i = 0; i < n; ++i) {
          const float* xb = x + i * ldx + b * kCodeBlock;
          float sum = y[i * ldy + r];
          for (int j = 0; j < kCodeBlock; ++j) sum = FmaT(w[j], xb[j], sum);
          y[i * ldy + r] = sum;
        }
      }
    }
  });
}

}  // namespace baton
