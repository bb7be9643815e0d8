// Bit for bit what the `gguf` Python package writes (tests/data/gguf_quant/quantized.json).
#include "kernels/quantize.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/convert_math.h"
#include "nlohmann/json.hpp"
#include "tests/support/test_data.h"

namespace baton {
namespace {

std::vector<unsigned char> FromHex(const std::string& hex) {
  std::vector<unsigned char> bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<unsigned char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

template <typename Block>
void ExpectBlocks(Block (*quantise)(const float*, int), const std::vector<float>& x,
                  const std::vector<unsigned char>& want) {
  ASSERT_EQ(want.size(), x.size() / kQuantBlock * sizeof(Block));
  for (std::size_t i = 0; i < x.size() / kQuantBlock; ++i) {
    const Block block = quantise(&x[i * kQuantBlock], kQuantBlock);
    EXPECT_EQ(std::memcmp(&block, &want[i * sizeof(Block)], sizeof(Block)), 0) << "block " << i;
  }
}

TEST(Quantize, BitExactAgainstTheGgufPackage) {
  const auto rows =
      nlohmann::json::parse(ReadFileOrEmpty(TestDataDir() + "/gguf_quant/quantized.json"));
  ASSERT_EQ(rows.size(), 2u);
  for (const auto& row : rows) {
    const auto bytes = FromHex(row["fp32"]);
    std::vector<float> x(bytes.size() / sizeof(float));
    std::memcpy(x.data(), bytes.data(), bytes.size());
    SCOPED_TRACE(row["type"].get<std::string>());
    if (row["type"] == "Q8_0") {
      ExpectBlocks(QuantizeInt8, x, FromHex(row["bytes"]));
    } else {
      ExpectBlocks(QuantizeInt4, x, FromHex(row["bytes"]));
    }
  }
}

// The bounds that the header states, also for a block that is not full.
TEST(Quantize, ErrorsStayWithinTheirBounds) {
  for (const int n : {1, 2, 17, 31, 32}) {
    float x[kQuantBlock];
    for (int i = 0; i < n; ++i) x[i] = std::sin(1.7f * static_cast<float>(i)) + 0.3f;
    const BlockQ8_0 b8 = QuantizeInt8(x, n);
    const BlockQ4_1 b4 = QuantizeInt4(x, n);
    const float d8 = HalfToFloat(b8.d), d4 = HalfToFloat(b4.d), m = HalfToFloat(b4.m);
    const float half = std::ldexp(1.0f, -11);
    for (int i = 0; i < kQuantBlock; ++i) {
      const int q4 = i < 16 ? b4.qs[i] & 15 : b4.qs[i - 16] >> 4;
      if (i >= n) {
        EXPECT_EQ(b8.qs[i], 0);
        EXPECT_EQ(q4, 0);
        continue;
      }
      // 1.01: the fp16 scale stands for the fp32 one.
      EXPECT_NEAR(d8 * b8.qs[i], x[i], 1.01f * d8 * (0.5f + 127 * half));
      EXPECT_NEAR(d4 * static_cast<float>(q4) + m, x[i],
                  1.01f * (d4 * (0.5f + 15 * half) + std::fabs(m) * half));
    }
  }
}

TEST(Quantize, ValuesThatAreNotFiniteGiveSomeBlock) {
  float x[kQuantBlock] = {1, std::numeric_limits<float>::quiet_NaN(),
                          std::numeric_limits<float>::infinity(), -2};
  EXPECT_TRUE(std::isinf(HalfToFloat(QuantizeInt8(x, kQuantBlock).d)));
  QuantizeInt4(x, kQuantBlock);
}

}  // namespace
}  // namespace baton
