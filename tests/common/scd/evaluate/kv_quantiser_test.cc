#include "common/scd/evaluate/kv_quantiser.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <set>
#include <vector>

#include "common/scd/q4_kv.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr KvShape kShape{2, 16};

std::vector<float> RandomKv(std::int64_t rows) {
  std::mt19937 random(3);
  std::normal_distribution<float> normal(0.5f, 2);
  std::vector<float> kv(static_cast<std::size_t>(rows * kShape.width()));
  for (float& x : kv) x = normal(random);
  return kv;
}

// The values that share a scale, by index into kv: rows of a key channel, channels of a value row.
std::vector<std::vector<std::size_t>> Groups(std::int64_t rows, std::int64_t first_row) {
  std::vector<std::vector<std::size_t>> groups;
  const std::int64_t ld = kShape.width();
  for (std::int64_t begin = 0; begin < rows; begin += 32) {
    for (std::int64_t c = 0; c < ld / 2; ++c) {
      auto& group = groups.emplace_back();
      for (std::int64_t r = std::max(begin, first_row); r < std::min(begin + 32, rows); ++r) {
        group.push_back(static_cast<std::size_t>(r * ld + c));
      }
    }
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    for (std::int64_t head = 0; head < kShape.kv_heads; ++head) {
      auto& group = groups.emplace_back();
      for (std::int64_t c = 0; c < kShape.head_dim; ++c) {
        group.push_back(static_cast<std::size_t>(r * ld + ld / 2 + head * kShape.head_dim + c));
      }
    }
  }
  return groups;
}

TEST(KvQuantiserTest, EveryValueBecomesTheNearestOfItsGroupsCodes) {
  constexpr std::int64_t kRows = 75;  // the last group is short
  for (const int bits : {1, 2, 3, 4, 8}) {
    const std::vector<float> x = RandomKv(kRows);
    std::vector<float> y = x;
    QuantiseKv(bits, kShape, 4, kRows, y.data());
    for (const auto& group : Groups(kRows, 4)) {
      double least = 1e9, most = -1e9;
      for (const std::size_t i : group) {
        least = std::min<double>(least, x[i]);
        most = std::max<double>(most, x[i]);
      }
      const double levels = std::pow(2, bits) - 1;
      const double step = (most - least) / levels;
      std::set<float> codes;
      for (const std::size_t i : group) {
        // Half a step, and what fp16 does to the scale and the offset.
        const double rounding = (levels * step + std::fabs(least)) * std::pow(2, -11);
        EXPECT_LE(std::fabs(static_cast<double>(y[i]) - x[i]), step / 2 * 1.0001 + rounding);
        codes.insert(y[i]);
      }
      EXPECT_LE(codes.size(), std::size_t{1} << bits);
    }
  }
}

TEST(KvQuantiserTest, FourBitsAreThoseOfTheWire) {
  constexpr std::int64_t kRows = 200, kCoded = 64;  // 72 are older than the residual: two groups
  std::vector<float> wire = RandomKv(kRows), here = wire;
  const std::vector<float> x = wire;
  PassThroughQ4(kShape, 4, kRows, wire.data());
  QuantiseKv(4, kShape, 4, kCoded, here.data());
  for (std::int64_t i = 4 * kShape.width(); i < kCoded * kShape.width(); ++i) {
    ASSERT_EQ(wire[i], here[i]) << i;
  }
  for (std::int64_t i = kCoded * kShape.width(); i < kRows * kShape.width(); ++i) {
    // fp16: half of the last of its 11 bits.
    ASSERT_NEAR(wire[i], x[i], std::fabs(x[i]) * std::pow(2, -11));
  }
}

TEST(KvQuantiserTest, BytesByHand) {
  // 32 rows of 2 heads of 16: 2 * 32 * 32 codes, 2 * 16 scales of channels, 32 * 2 of rows, 4 bytes
  // each.
  EXPECT_EQ(QuantisedKvBytes(2, kShape, 32), 2048 * 2 / 8 + 32 * 4 + 64 * 4);
  EXPECT_EQ(QuantisedKvBytes(3, kShape, 33), 66 * 32 * 3 / 8.0 + 2 * 32 * 4 + 66 * 4);
  EXPECT_EQ(Q4KvBytes(kShape, 200), 2 * 2 * (Q4KeyBytes(16) + Q4ValueBytes(16)) + 136 * 64 * 2.0);
  EXPECT_EQ(Q4KvBytes(kShape, 100), 100 * 64 * 2.0);
}

TEST(KvQuantiserTest, FirstRowsHaveNoSayInTheKeysScales) {
  constexpr std::int64_t kRows = 32;
  std::vector<float> a = RandomKv(kRows), b = a;
  for (std::int64_t c = 0; c < kShape.width() / 2; ++c) b[c] = 1000;
  QuantiseKv(3, kShape, 4, kRows, a.data());
  QuantiseKv(3, kShape, 4, kRows, b.data());
  EXPECT_TRUE(std::equal(a.begin() + 4 * kShape.width(), a.end(), b.begin() + 4 * kShape.width()));
}

}  // namespace
}  // namespace baton
