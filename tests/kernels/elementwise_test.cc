#include "kernels/elementwise.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/elementwise_math.h"
#include "kernels/exp_math.h"
#include "tests/kernels/test_util.h"

namespace baton {
namespace {

constexpr std::int64_t kSizes[] = {1, 7, 15, 16, 17, 63, 64, 65, 80, 576, 1537};

double Ulps(float got, double want) {
  const float w = static_cast<float>(want);
  const double ulp = std::nextafter(std::fabs(w), kInf) - static_cast<double>(std::fabs(w));
  return std::fabs(got - want) / ulp;
}

TEST(Exp, WithinTwoUlpsAndExactAtTheEnds) {
  double worst = 0;
  for (float x = -87.3f; x < 88.0f; x += 0.00137f) {
    worst = std::max(worst, Ulps(ExpT(x), std::exp(static_cast<double>(x))));
  }
  EXPECT_LT(worst, 2.0);
  EXPECT_EQ(ExpT(0.0f), 1.0f);
  EXPECT_EQ(ExpT(-0.0f), 1.0f);
  EXPECT_EQ(ExpT(-kInf), 0.0f);
  EXPECT_EQ(ExpT(-100.0f), 0.0f);
  EXPECT_TRUE(std::isnan(ExpT(std::nanf(""))));
  EXPECT_TRUE(std::isfinite(ExpT(kInf)));
}

TEST(SinCos, NearestFloatOverTheWholeContext) {
  double worst = 0;
  for (int i = 0; i < 300000; ++i) {
    const float angle = static_cast<float>(i) * 0.4370137f;
    const SinCos sc = PreciseSinCos(angle);
    worst = std::max(worst, Ulps(sc.sin, std::sin(static_cast<double>(angle))));
    worst = std::max(worst, Ulps(sc.cos, std::cos(static_cast<double>(angle))));
  }
  EXPECT_LT(worst, 0.501);
  EXPECT_EQ(PreciseSinCos(0.0f).sin, 0.0f);
  EXPECT_EQ(PreciseSinCos(0.0f).cos, 1.0f);
}

TEST(RmsNorm, EqualsFloat64) {
  auto pool = MakeThreadPool(2);
  for (IsaLevel level : AvailableLevels()) {
    ScopedIsa isa(level);
    for (std::int64_t d : kSizes) {
      const std::int64_t n = 5, ld = d + 3;
      const auto x = RandomFloats(static_cast<std::size_t>(n * ld), 1, 3.0f);
      const auto gamma = RandomFloats(static_cast<std::size_t>(d), 2);
      for (bool with_gamma : {true, false}) {
        std::vector<float> y(static_cast<std::size_t>(n * ld), 9.0f);
        RmsNorm(x.data(), ld, with_gamma ? gamma.data() : nullptr, 1e-5f, n, d, y.data(), ld,
                *pool);
        for (std::int64_t r = 0; r < n; ++r) {
          double sum = 0;
          for (std::int64_t i = 0; i < d; ++i) {
            sum += std::pow(x[static_cast<std::size_t>(r * ld + i)], 2.0);
          }
          const double inv = 1.0 / std::sqrt(sum / static_cast<double>(d) + 1e-5);
          for (std::int64_t i = 0; i < ld; ++i) {
            const std::size_t at = static_cast<std::size_t>(r * ld + i);
            if (i >= d) {
              ASSERT_EQ(y[at], 9.0f) << "wrote beyond its row";
              continue;
            }
            const double want =
                x[at] * inv * (with_gamma ? gamma[static_cast<std::size_t>(i)] : 1.0f);
            ASSERT_NEAR(y[at], want, 2e-6 * std::fabs(want)) << IsaName(level) << " d=" << d;
          }
        }
      }
    }
  }
}

TEST(Rope, EqualsTheHalfSplitFormula) {
  SerialExecutor serial;
  for (IsaLevel level : AvailableLevels()) {
    ScopedIsa isa(level);
    for (int head_dim : {8, 24, 64, 80, 128, 256}) {
      const int heads = 3, half = head_dim / 2;
      const std::int64_t n = 4, ld = heads * head_dim + 5;
      std::vector<float> inv_freq(static_cast<std::size_t>(half));
      for (int i = 0; i < half; ++i) {
        inv_freq[static_cast<std::size_t>(i)] =
            static_cast<float>(1.0 / std::pow(10000.0, 2.0 * i / head_dim));
      }
      const std::int32_t positions[] = {0, 5, 131071, 77};
      const auto x = RandomFloats(static_cast<std::size_t>(n * ld), 3);
      auto y = x;
      Rope(y.data(), ld, positions, inv_freq.data(), 1.25f, heads, head_dim, n, serial);
      for (std::int64_t r = 0; r < n; ++r) {
        for (int h = 0; h < heads; ++h) {
          for (int i = 0; i < half; ++i) {
            const std::size_t lo = static_cast<std::size_t>(r * ld + h * head_dim + i);
            const std::size_t hi = lo + static_cast<std::size_t>(half);
            // The angle is an fp32 product in HF too.
            const float angle =
                static_cast<float>(positions[r]) * inv_freq[static_cast<std::size_t>(i)];
            const double c = std::cos(static_cast<double>(angle)) * 1.25;
            const double s = std::sin(static_cast<double>(angle)) * 1.25;
            const double scale = 1e-6 * (std::fabs(x[lo]) + std::fabs(x[hi]));
            ASSERT_NEAR(y[lo], x[lo] * c - x[hi] * s, scale);
            ASSERT_NEAR(y[hi], x[hi] * c + x[lo] * s, scale);
          }
        }
        for (std::int64_t i = heads * head_dim; i < ld; ++i) {
          ASSERT_EQ(y[static_cast<std::size_t>(r * ld + i)],
                    x[static_cast<std::size_t>(r * ld + i)]);
        }
      }
    }
  }
}

TEST(SiluMul, EqualsFloat64) {
  SerialExecutor serial;
  for (IsaLevel level : AvailableLevels()) {
    ScopedIsa isa(level);
    for (std::int64_t d : kSizes) {
      const auto gate = RandomFloats(static_cast<std::size_t>(2 * d), 4, 8.0f);
      const auto up = RandomFloats(static_cast<std::size_t>(2 * d), 5);
      std::vector<float> y(static_cast<std::size_t>(2 * d));
      SiluMul(gate.data(), d, up.data(), d, 2, d, y.data(), d, serial);
      for (std::size_t i = 0; i < y.size(); ++i) {
        const double g = gate[i];
        const double want = g / (1.0 + std::exp(-g)) * up[i];
        ASSERT_NEAR(y[i], want, 2e-6 * std::fabs(want));
      }
    }
    const float gate[] = {-1e4f, 1e4f, 0.0f}, up[] = {1, 1, 1};
    float y[3];
    SiluMul(gate, 3, up, 3, 1, 3, y, 3, serial);
    EXPECT_NEAR(y[0], 0.0f, 1e-30f);
    EXPECT_EQ(y[1], 1e4f);
    EXPECT_EQ(y[2], 0.0f);
  }
}

TEST(AddRows, AddsOnlyItsColumns) {
  SerialExecutor serial;
  auto x = RandomFloats(3 * 40, 6);
  const auto before = x;
  const auto y = RandomFloats(3 * 50, 7);
  AddRows(x.data(), 40, y.data(), 50, 3, 37, serial);
  for (std::size_t r = 0; r < 3; ++r) {
    for (std::size_t i = 0; i < 40; ++i) {
      const float want = before[r * 40 + i] + (i < 37 ? y[r * 50 + i] : 0.0f);
      EXPECT_EQ(x[r * 40 + i], want);
    }
  }
}

TEST(LogSumExp, EqualsFloat64) {
  for (IsaLevel level : AvailableLevels()) {
    ScopedIsa isa(level);
    for (std::int64_t d : kSizes) {
      auto x = RandomFloats(static_cast<std::size_t>(d), 8, 10.0f);
      if (d > 3) x[2] = -kInf;
      double sum = 0;
      for (float v : x) sum += std::exp(static_cast<double>(v));
      EXPECT_NEAR(LogSumExp(x.data(), d), std::log(sum), 1e-6 * (1 + std::fabs(std::log(sum))));
    }
    const float none[] = {-kInf, -kInf};
    EXPECT_EQ(LogSumExp(none, 2), -kInf);
    EXPECT_EQ(LogSumExp(none, 0), -kInf);
  }
}

TEST(Elementwise, SameBitsOnEveryInstructionSetAndSplit) {
  constexpr std::int64_t kN = 70, kD = 576;
  const auto x = RandomFloats(kN * kD, 9, 2.0f);
  const auto g = RandomFloats(kN * kD, 10);
  std::vector<float> inv_freq(32);
  std::vector<std::int32_t> positions(kN);
  for (std::size_t i = 0; i < 32; ++i) inv_freq[i] = static_cast<float>(std::pow(1e4, -i / 32.0));
  for (std::size_t i = 0; i < kN; ++i) positions[i] = static_cast<std::int32_t>(i * 113);
  SerialExecutor serial;
  auto pool = MakeThreadPool(2);
  std::vector<float> first;
  for (IsaLevel level : AvailableLevels()) {
    ScopedIsa isa(level);
    for (Executor* executor : {static_cast<Executor*>(&serial), pool.get()}) {
      std::vector<float> all(3 * kN * kD + 1);
      RmsNorm(x.data(), kD, g.data(), 1e-5f, kN, kD, all.data(), kD, *executor);
      SiluMul(x.data(), kD, g.data(), kD, kN, kD, &all[kN * kD], kD, *executor);
      std::copy(x.begin(), x.end(), all.begin() + 2 * kN * kD);
      Rope(&all[2 * kN * kD], kD, positions.data(), inv_freq.data(), 1.0f, 9, 64, kN, *executor);
      all.back() = LogSumExp(x.data(), kN * kD);
      if (first.empty()) first = all;
      ASSERT_TRUE(SameBits(all, first)) << IsaName(level);
    }
  }
}

}  // namespace
}  // namespace baton
