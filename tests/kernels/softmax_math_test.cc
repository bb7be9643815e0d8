#include "kernels/softmax_math.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/kernels/test_util.h"

namespace baton {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

double LogSumExp64(const std::vector<float>& x) {
  double max = -kInf, sum = 0;
  for (float v : x) max = std::max(max, static_cast<double>(v));
  if (max == -kInf) return max;
  for (float v : x) sum += std::exp(v - max);
  return max + std::log(sum);
}

// Any split of the terms gives the float64 value. n terms and their rescalings: 2^-24 * 2 (n + 2).
TEST(SoftmaxMath, MergedPartsEqualFloat64) {
  for (float scale : {0.1f, 4.0f, 60.0f}) {
    const std::vector<float> x = RandomFloats(300, 1, scale);
    const double want = LogSumExp64(x);
    for (std::size_t split : {0, 1, 150, 299, 300}) {
      SoftmaxState a = EmptySoftmax(), b = EmptySoftmax();
      for (std::size_t i = 0; i < split; ++i) a = AddTerm(a, x[i]);
      for (std::size_t i = split; i < x.size(); ++i) b = AddTerm(b, x[i]);
      EXPECT_NEAR(LogSumExpOf(MergeSoftmax(a, b)), want, 3.6e-5 + 2.4e-7 * std::fabs(want));
      EXPECT_NEAR(LogSumExpOf(MergeSoftmax(b, a)), want, 3.6e-5 + 2.4e-7 * std::fabs(want));
    }
  }
}

TEST(SoftmaxMath, NothingAndInfinity) {
  const SoftmaxState none = EmptySoftmax();
  EXPECT_EQ(LogSumExpOf(none), -kInf);
  EXPECT_EQ(LogSumExpOf(MergeSoftmax(none, none)), -kInf);
  EXPECT_EQ(LogSumExpOf(AddTerm(none, -kInf)), -kInf);
  const SoftmaxState one = AddTerm(AddTerm(none, -kInf), 3.0f);
  EXPECT_EQ(LogSumExpOf(one), 3.0f);
  EXPECT_EQ(LogSumExpOf(MergeSoftmax(one, none)), 3.0f);
  EXPECT_EQ(LogSumExpOf(MergeSoftmax(none, one)), 3.0f);
  EXPECT_EQ(LogSumExpOf(AddTerm(one, -kInf)), 3.0f);
}

}  // namespace
}  // namespace baton
