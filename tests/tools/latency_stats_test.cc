#include "tools/latency_stats.h"

#include <gtest/gtest.h>

namespace baton::tools {
namespace {

TEST(LatencyStatsTest, EmptyIsAllZero) {
  const LatencySummary s = Summarize({});
  EXPECT_EQ(s.count, 0u);
  EXPECT_EQ(s.p99, 0);
}

// Values of numpy.percentile([4, 1, 3, 2, 10], [50, 90, 95, 99]).
TEST(LatencyStatsTest, PercentilesAreNumpys) {
  const LatencySummary s = Summarize({4, 1, 3, 2, 10});
  EXPECT_EQ(s.count, 5u);
  EXPECT_DOUBLE_EQ(s.mean, 4);
  EXPECT_DOUBLE_EQ(s.min, 1);
  EXPECT_DOUBLE_EQ(s.p50, 3);
  EXPECT_NEAR(s.p90, 7.6, 1e-12);
  EXPECT_NEAR(s.p95, 8.8, 1e-12);
  EXPECT_NEAR(s.p99, 9.76, 1e-12);
  EXPECT_DOUBLE_EQ(s.max, 10);
}

TEST(LatencyStatsTest, OneValueIsEveryPercentile) {
  const LatencySummary s = Summarize({0.25});
  EXPECT_DOUBLE_EQ(s.p50, 0.25);
  EXPECT_DOUBLE_EQ(s.p99, 0.25);
}

}  // namespace
}  // namespace baton::tools
