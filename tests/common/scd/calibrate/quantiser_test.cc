#include "common/scd/calibrate/quantiser.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

// The unit Gaussian's quantiles at (i + 0.5) / n: a sample without chance.
std::vector<float> Gaussian(int n) {
  std::vector<float> sample;
  for (int i = 0; i < n; ++i) {
    const double p = (i + 0.5) / n;
    double low = -8, high = 8;
    for (int step = 0; step < 50; ++step) {
      const double middle = (low + high) / 2;
      (0.5 * std::erfc(-middle / std::sqrt(2.0)) < p ? low : high) = middle;
    }
    sample.push_back(static_cast<float>(low));
  }
  return sample;
}

// J. Max, "Quantizing for minimum distortion", 1960, table 1 (the positive half).
TEST(QuantiserTest, GaussianLevelsAreThoseOfMax) {
  const std::vector<float> sample = Gaussian(20000);
  const std::vector<std::vector<double>> table = {
      {0.7980},
      {0.4528, 1.510},
      {0.2451, 0.7560, 1.344, 2.152},
      {0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733}};
  const double errors[] = {0.3634, 0.1175, 0.03454, 0.009497};
  for (int bits = 1; bits <= 4; ++bits) {
    const std::vector<float> levels = MakeLevels(sample, bits);
    const std::size_t half = std::size_t{1} << (bits - 1);
    ASSERT_EQ(levels.size(), 2 * half);
    for (std::size_t i = 0; i < half; ++i) {
      // Lloyd's steps shorten as they come near: a level may be 1 % off where its distortion is
      // not.
      EXPECT_NEAR(levels[half + i], table[bits - 1][i], 0.01 * table[bits - 1][i] + 0.002);
      EXPECT_NEAR(levels[half - 1 - i], -table[bits - 1][i], 0.01 * table[bits - 1][i] + 0.002);
    }
    EXPECT_NEAR(Distortion(sample, levels), errors[bits - 1], 0.003 * errors[bits - 1]) << bits;
  }
}

TEST(QuantiserTest, MoreBitsErrLess) {
  const std::vector<float> sample = Gaussian(4096);
  double last = Distortion(sample, {0.0f});
  for (const int bits : {1, 2, 3, 4, 6, 8}) {
    const std::vector<float> levels = MakeLevels(sample, bits);
    EXPECT_EQ(levels.size(), std::size_t{1} << bits);
    const double error = Distortion(sample, levels);
    EXPECT_LT(error, last / 2) << bits;
    last = error;
  }
}

TEST(QuantiserTest, DistortionIsOfTheNearestLevel) {
  const std::vector<float> sample = {-2.0f, -0.4f, 0.1f, 0.6f, 5.0f};
  const std::vector<float> levels = {-1.0f, 0.0f, 1.0f, 2.0f};
  double brute = 0;
  for (const float x : sample) {
    double best = 1e9;
    for (const float level : levels) best = std::min(best, std::pow(double{x} - level, 2));
    brute += best / 5;
  }
  EXPECT_DOUBLE_EQ(Distortion(sample, levels), brute);
}

TEST(QuantiserTest, LevelsAscendWhateverTheSamples) {
  for (const std::vector<float>& sample :
       {std::vector<float>(300, 0.0f), std::vector<float>(300, -1e30f), std::vector<float>{1.5f},
        std::vector<float>{-1, -1, -1, 2, 2, 7}}) {
    for (const int bits : {1, 2, 3, 4, 6, 8}) {
      const std::vector<float> levels = MakeLevels(sample, bits);
      EXPECT_EQ(levels.size(), std::size_t{1} << bits);
      EXPECT_EQ(std::adjacent_find(levels.begin(), levels.end(), std::greater_equal<>()),
                levels.end());
      EXPECT_TRUE(
          std::all_of(levels.begin(), levels.end(), [](float x) { return std::isfinite(x); }));
    }
  }
}

TEST(QuantiserTest, OutliersDoNotStretchTheUniformOnes) {
  std::vector<float> sample = Gaussian(10000);
  sample.front() = -1000;
  sample.back() = 1000;
  const std::vector<float> levels = MakeLevels(sample, 8);
  // The quantiles at 0.025 % and 99.975 % are +-3.48.
  EXPECT_NEAR(levels.front(), -3.48, 0.1);
  EXPECT_NEAR(levels.back(), 3.48, 0.1);
}

}  // namespace
}  // namespace baton
