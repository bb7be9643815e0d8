#include "kernels/sampling.h"

#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "tests/kernels/test_util.h"

namespace baton {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

TEST(ArgMax, LowestIndexOfEqualsAtEveryPlace) {
  for (std::int64_t n : {1, 2, 15, 16, 17, 64, 65, 200}) {
    for (std::int64_t at = 0; at < n; ++at) {
      std::vector<float> x(static_cast<std::size_t>(n), -1.0f);
      x[static_cast<std::size_t>(at)] = 2.0f;
      x[static_cast<std::size_t>(n - 1)] = 2.0f;
      EXPECT_EQ(ArgMax(x.data(), n), at);
    }
  }
}

TEST(ArgMax, NaNAndInfinity) {
  for (IsaLevel level : AvailableLevels()) {
    ScopedIsa isa(level);
    std::vector<float> x(130, NAN);
    EXPECT_EQ(ArgMax(x.data(), 130), -1);
    EXPECT_EQ(ArgMax(x.data(), 0), -1);
    x[70] = -kInf;
    EXPECT_EQ(ArgMax(x.data(), 130), 70);
    x[90] = -3.0f;
    EXPECT_EQ(ArgMax(x.data(), 130), 90);
  }
}

TEST(Softmax, SumsToOneAndMasks) {
  auto x = RandomFloats(1001, 7, 4.0f);
  x[5] = -kInf;
  std::vector<float> p(x.size());
  ASSERT_TRUE(Softmax(x.data(), 1001, 0.7f, p.data()));
  double sum = 0, total = 0;
  for (float v : x) total += std::exp(static_cast<double>(v) / 0.7);
  for (std::size_t i = 0; i < x.size(); ++i) {
    sum += p[i];
    EXPECT_NEAR(p[i], std::exp(static_cast<double>(x[i]) / 0.7) / total, 3e-6 * p[i] + 1e-12);
  }
  EXPECT_NEAR(sum, 1.0, 1e-5);
  EXPECT_EQ(p[5], 0.0f);
  std::vector<float> none(3, -kInf);
  EXPECT_FALSE(Softmax(none.data(), 3, 1.0f, none.data()));
}

}  // namespace
}  // namespace baton
