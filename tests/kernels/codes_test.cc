#include "kernels/codes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/convert_math.h"
#include "tests/kernels/test_util.h"

namespace baton {
namespace {

std::size_t Count(std::int64_t n) { return static_cast<std::size_t>(n); }

struct Codes {
  std::vector<std::uint8_t> codes;
  std::vector<std::uint16_t> scales;
};

Codes Quantize(CodeType type, const std::vector<float>& x, std::int64_t n, std::int64_t d) {
  SerialExecutor serial;
  const std::int64_t blocks = n * d / kCodeBlock;
  Codes c{std::vector<std::uint8_t>(Count(blocks * CodeBlockBytes(type))),
          std::vector<std::uint16_t>(Count(blocks * CodeBlockScales(type)))};
  QuantizeRows(x.data(), d, n, d, type, c.codes.data(), c.scales.data(), serial);
  return c;
}

std::vector<float> Dequantize(CodeType type, const Codes& c, std::int64_t n, std::int64_t d) {
  SerialExecutor serial;
  std::vector<float> y(Count(n * d));
  DequantizeRows(c.codes.data(), c.scales.data(), n, d, type, y.data(), d, serial);
  return y;
}

// Two blocks whose values are exact in fp32.
std::vector<float> Sample() {
  std::vector<float> x;
  for (int i = 0; i < 64; ++i) {
    x.push_back(static_cast<float>(i * 37 % 101 - 50) / 8.0f * static_cast<float>(1 + i / 32));
  }
  return x;
}

// What the gguf package (0.19) makes of the same values as Q8_0 and Q4_1.
TEST(Codes, Int8EqualsGguf) {
  const Codes c = Quantize(CodeType::kInt8, Sample(), 1, 64);
  EXPECT_EQ(c.scales, (std::vector<std::uint16_t>{0x2a4d, 0x2e2c}));
  const std::vector<int> want = {
      -127, -33,  61,  -102, -8,   86,  -76,  18,  112, -51,  43,  -119, -25, 69,  -94, 0,
      94,   -69,  25,  119,  -43,  51,  -112, -18, 76,  -86,  8,   102,  -61, 33,  127, -36,
      60,   -106, -10, 86,   -80,  16,  111,  -54, 41,  -124, -29, 67,   -98, -3,  93,  -73,
      23,   119,  -47, 49,   -117, -21, 75,   -91, 5,   101,  -65, 31,   127, -39, 57,  -109};
  for (std::size_t i = 0; i < 64; ++i)
    EXPECT_EQ(static_cast<std::int8_t>(c.codes[i]), want[i]) << i;
}

TEST(Codes, Int4EqualsGguf) {
  const Codes c = Quantize(CodeType::kInt4, Sample(), 1, 64);
  EXPECT_EQ(c.scales, (std::vector<std::uint16_t>{0x3aab, 0xc640, 0x3e77, 0xca00}));
  const std::vector<std::uint8_t> want = {208, 54, 155, 242, 87, 189, 19,  105, 206, 37, 138,
                                          224, 70, 156, 242, 88, 155, 241, 87,  173, 3,  104,
                                          206, 36, 138, 208, 70, 155, 242, 87,  189, 19};
  EXPECT_EQ(c.codes, want);
}

// Half a step of the block, and what rounding the scale to fp16 adds.
TEST(Codes, ErrorIsHalfAStep) {
  const std::vector<float> x = RandomFloats(40 * 96, 1, 3.0f);
  for (CodeType type : {CodeType::kInt8, CodeType::kInt4}) {
    const std::vector<float> y = Dequantize(type, Quantize(type, x, 40, 96), 40, 96);
    for (std::size_t b = 0; b < x.size(); b += 32) {
      const auto [low, high] = std::minmax_element(x.begin() + b, x.begin() + b + 32);
      const double largest = std::max(std::fabs(*low), std::fabs(*high));
      const double step = type == CodeType::kInt8 ? largest / 127 : (*high - *low) / 15;
      const double range = type == CodeType::kInt8 ? largest : *high - *low + std::fabs(*low);
      for (std::size_t i = b; i < b + 32; ++i) {
        ASSERT_LE(std::fabs(y[i] - x[i]), step * 0.5 + range / 2048 + 1e-6) << i;
      }
    }
  }
}

TEST(Codes, FlatAndTinyBlocks) {
  for (float value : {0.0f, 2.5f, -2.5f, 1e-41f, -1e-41f}) {
    const std::vector<float> x(32, value);
    for (CodeType type : {CodeType::kInt8, CodeType::kInt4}) {
      for (float y : Dequantize(type, Quantize(type, x, 1, 32), 1, 32)) {
        ASSERT_NEAR(y, value, std::fabs(value) / 1024 + 1e-7) << value;
      }
    }
  }
}

// Every code through the device's conversions of packed words.
TEST(CodesMath, PackedCodesToFloat) {
  for (int q = -128; q < 128; ++q) {
    for (int i = 0; i < 4; ++i) {
      const std::uint32_t word = static_cast<std::uint32_t>(q & 0xff) << (8 * i);
      ASSERT_EQ(Int8Float(word, i), static_cast<float>(q));
      ASSERT_EQ(Int8Float(word ^ (i == 0 ? 0xff00u : 0xffu), i), static_cast<float>(q));
    }
  }
  for (std::uint32_t q = 0; q < 16; ++q) {
    for (int i = 0; i < 8; ++i) ASSERT_EQ(Int4Float(q << (4 * i), i), static_cast<float>(q));
  }
}

TEST(CodesMath, CodesStayInRangeForAnything) {
  for (float x : {0.0f, 1e30f, -1e30f, INFINITY, -INFINITY, NAN, 1e-45f}) {
    for (float inverse : {0.0f, 1.0f, 1e38f, INFINITY}) {
      EXPECT_LE(std::abs(Int8Code(x, inverse)), 127);
      EXPECT_GE(Int4Code(x, 0.0f, inverse), 0);
      EXPECT_LE(Int4Code(x, 0.0f, inverse), 15);
    }
  }
}

// Where x + 0.5 rounds up to the next integer, and exact halves.
TEST(CodesMath, RoundsHalvesAwayFromZeroExactly) {
  const float below = std::nextafter(0.5f, 0.0f);
  for (int q = -126; q <= 126; ++q) {
    for (float x : {0.0f, below, 0.5f, -below, -0.5f, 0.25f}) {
      const float at = static_cast<float>(q) + x;
      ASSERT_EQ(Int8Code(at, 1.0f), static_cast<int>(std::round(at))) << at;
    }
  }
}

TEST(MultiplyCodes, EqualsTheFloat64Product) {
  auto pool = MakeThreadPool(2);
  const std::int64_t rows = 21, cols = 160, n = 3, ldx = cols + 3, ldy = rows + 2;
  const std::vector<float> x = RandomFloats(Count(n * ldx), 2);
  for (CodeType type : {CodeType::kInt8, CodeType::kInt4}) {
    const Codes c = Quantize(type, RandomFloats(Count(rows * cols), 1), rows, cols);
    const std::vector<float> w = Dequantize(type, c, rows, cols);
    std::vector<float> y(Count(n * ldy), 77.0f);
    MultiplyCodes(c.codes.data(), c.scales.data(), type, rows, cols, x.data(), ldx, n, y.data(),
                  ldy, *pool);
    for (std::int64_t r = 0; r < n; ++r) {
      for (std::int64_t o = 0; o < rows; ++o) {
        double want = 0, scale = 0;
        for (std::int64_t i = 0; i < cols; ++i) {
          const double p = static_cast<double>(w[Count(o * cols + i)]) * x[Count(r * ldx + i)];
          want += p;
          scale += std::fabs(p);
        }
        ASSERT_NEAR(y[Count(r * ldy + o)], want, scale * std::ldexp(cols / 4.0 + 4, -24));
      }
      ASSERT_EQ(y[Count(r * ldy + rows)], 77.0f);
    }
  }
}

}  // namespace
}  // namespace baton
