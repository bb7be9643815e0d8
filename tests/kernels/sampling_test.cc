#include "kernels/sampling.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/test_util.h"

namespace baton {
namespace {

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

}  // namespace
}  // namespace baton
