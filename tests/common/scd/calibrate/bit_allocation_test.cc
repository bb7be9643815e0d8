#include "common/scd/calibrate/bit_allocation.h"

#include <algorithm>
#include <numeric>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

double ErrorOf(const std::vector<BitErrors>& components, const std::vector<std::uint8_t>& bits) {
  double sum = 0;
  for (std::size_t i = 0; i < bits.size(); ++i) {
    const auto at = std::find(kBitChoices.begin(), kBitChoices.end(), bits[i]);
    sum += components[i][static_cast<std::size_t>(at - kBitChoices.begin())];
  }
  return sum;
}

// The least error of every budget 0..limit, by trying everything.
std::vector<double> Best(const std::vector<BitErrors>& components, std::int64_t limit) {
  std::vector<double> best(static_cast<std::size_t>(limit) + 1, 1e300);
  std::vector<std::size_t> choice(components.size(), 0);
  for (;;) {
    std::int64_t used = 0;
    double error = 0;
    for (std::size_t i = 0; i < choice.size(); ++i) {
      used += kBitChoices[choice[i]];
      error += components[i][choice[i]];
    }
    for (std::int64_t b = used; b <= limit; ++b) best[b] = std::min(best[b], error);
    std::size_t i = 0;
    while (i < choice.size() && ++choice[i] == kBitChoices.size()) choice[i++] = 0;
    if (i == choice.size()) return best;
  }
}

// Importance times the distortion of Max's quantisers, then 6 dB a bit.
BitErrors GaussianErrors(double importance) {
  BitErrors errors = {1, 0.3634, 0.1175, 0.03454, 0.009497, 0.00104, 0.0000694};
  for (double& e : errors) e *= importance;
  return errors;
}

TEST(BitAllocationTest, GaussianComponentsGetTheBestUpToOneBit) {
  std::mt19937 random(3);
  std::uniform_real_distribution<double> exponent(-3, 3);
  for (int round = 0; round < 20; ++round) {
    std::vector<BitErrors> components;
    for (int i = 0; i < 4; ++i) components.push_back(GaussianErrors(std::exp(exponent(random))));
    const std::vector<double> best = Best(components, 33);
    for (std::int64_t budget = 0; budget <= 33; ++budget) {
      const std::vector<std::uint8_t> bits = AllocateBits(components, budget);
      const std::int64_t used = std::accumulate(bits.begin(), bits.end(), std::int64_t{0});
      ASSERT_LE(used, budget);
      const double error = ErrorOf(components, bits);
      // Steps are of one bit, but for the last two, of two: at most one bit is left over.
      EXPECT_LE(error, best[std::max<std::int64_t>(0, budget - 1)] * (1 + 1e-12));
      // With what it spent nobody does better, unless a small step was taken past a large one.
      EXPECT_GE(error, best[used] * (1 - 1e-12));
    }
  }
}

TEST(BitAllocationTest, AnyErrorsGetTheBestUpToOneStep) {
  std::mt19937 random(4);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (int round = 0; round < 20; ++round) {
    std::vector<BitErrors> components(4);
    for (BitErrors& errors : components) {
      for (double& e : errors) e = uniform(random);
    }
    const std::vector<double> best = Best(components, 32);
    for (std::int64_t budget = 0; budget <= 32; ++budget) {
      const std::vector<std::uint8_t> bits = AllocateBits(components, budget);
      ASSERT_LE(std::accumulate(bits.begin(), bits.end(), std::int64_t{0}), budget);
      // The first step that does not fit has at most 8 bits.
      EXPECT_LE(ErrorOf(components, bits), best[std::max<std::int64_t>(0, budget - 7)] + 1e-12);
    }
  }
}

TEST(BitAllocationTest, ImportantComponentsGetMoreAndIdleOnesNone) {
  const std::vector<BitErrors> components = {GaussianErrors(1000), GaussianErrors(10),
                                             GaussianErrors(10), GaussianErrors(1e-6)};
  const std::vector<std::uint8_t> bits = AllocateBits(components, 10);
  EXPECT_GT(bits[0], bits[1]);
  EXPECT_EQ(bits[1], bits[2]);
  EXPECT_EQ(bits[3], 0);
}

TEST(BitAllocationTest, NoBudgetAndNoComponents) {
  EXPECT_EQ(AllocateBits({GaussianErrors(1)}, 0), std::vector<std::uint8_t>{0});
  EXPECT_TRUE(AllocateBits({}, 100).empty());
  EXPECT_EQ(AllocateBits({GaussianErrors(1)}, 100), std::vector<std::uint8_t>{8});
}

TEST(BitAllocationTest, EqualBitsGoToThoseThatLoseMost) {
  const std::vector<BitErrors> components = {GaussianErrors(1), GaussianErrors(9),
                                             GaussianErrors(3), GaussianErrors(9)};
  EXPECT_EQ(AllocateEqualBits(components, 4, 11), (std::vector<std::uint8_t>{0, 4, 0, 4}));
  EXPECT_EQ(AllocateEqualBits(components, 4, 12), (std::vector<std::uint8_t>{0, 4, 4, 4}));
  EXPECT_EQ(AllocateEqualBits(components, 8, 8), (std::vector<std::uint8_t>{0, 8, 0, 0}));
  EXPECT_EQ(AllocateEqualBits(components, 8, 1000), (std::vector<std::uint8_t>{8, 8, 8, 8}));
  EXPECT_EQ(AllocateEqualBits(components, 8, 7), (std::vector<std::uint8_t>{0, 0, 0, 0}));
}

}  // namespace
}  // namespace baton
