#include "common/scd/evaluate/bootstrap.h"

#include <cmath>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(BootstrapTest, IntervalOfAMeanIsTheNormalOne) {
  std::mt19937 random(1);
  std::normal_distribution<double> normal(5, 2);
  std::vector<double> values, ones(400, 1);
  for (int i = 0; i < 400; ++i) values.push_back(normal(random));
  double mean = 0, squares = 0;
  for (const double v : values) mean += v / 400;
  for (const double v : values) squares += (v - mean) * (v - mean);
  const double error = std::sqrt(squares / 400 / 400);
  const Interval interval = RatioInterval(values, ones, 4000, 7);
  // A 2.5 % quantile of 4,000 draws has a standard error of sqrt(.025 * .975 / 4000) / .0584 = .042
  // of the spread; four of these.
  EXPECT_NEAR(interval.low, mean - 1.96 * error, 0.17 * error);
  EXPECT_NEAR(interval.high, mean + 1.96 * error, 0.17 * error);
}

TEST(BootstrapTest, WhatBelongsTogetherIsDrawnTogether) {
  const std::vector<double> raw = {1, 7, 2, 9, 4};
  std::vector<double> half;
  for (const double r : raw) half.push_back(r / 2);
  const Interval interval = RatioInterval(half, raw, 500, 3);
  EXPECT_DOUBLE_EQ(interval.low, 0.5);
  EXPECT_DOUBLE_EQ(interval.high, 0.5);
}

TEST(BootstrapTest, SeedsDecide) {
  const std::vector<double> a = {1, 7, 2, 9, 4}, ones(5, 1);
  EXPECT_EQ(RatioInterval(a, ones, 50, 3).low, RatioInterval(a, ones, 50, 3).low);
  EXPECT_NE(RatioInterval(a, ones, 50, 3).low, RatioInterval(a, ones, 50, 4).low);
}

TEST(BootstrapTest, TooLittleGivesTheRatioItself) {
  EXPECT_EQ(RatioInterval({3}, {2}, 100, 0).low, 1.5);
  EXPECT_EQ(RatioInterval({3}, {2}, 100, 0).high, 1.5);
  EXPECT_EQ(RatioInterval({}, {}, 100, 0).high, 0);
  EXPECT_EQ(RatioInterval({0, 0}, {0, 0}, 100, 0).high, 0);
}

}  // namespace
}  // namespace baton
