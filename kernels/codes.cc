#include "kernels/codes.h"

#include <cstring>

#include "kernels/quantize.h"

namespace baton {
namespace {

static_assert(kCodeBlock == kQuantBlock);

void Quantize(CodeType type, const float* x, std::uint8_t* codes, std::uint16_t* scales) {
  if (type == CodeType::kInt8) {
    const BlockQ8_0 b = QuantizeInt8(x, kCodeBlock);
    std::memcpy(codes, b.qs, sizeof b.qs);
    scales[0] = b.d;
    return;
  }
  const BlockQ4_1 b = QuantizeInt4(x, kCodeBlock);
  std::memcpy(codes, b.qs, sizeof b.qs);
  scales[0] = b.d;
  scales[1] = b.m;
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
      Quantize(type, src, codes + b * CodeBlockBytes(type), scales + b * CodeBlockScales(type));
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
