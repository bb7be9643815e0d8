#include "router/route/policy.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "router/route/circuit_breaker.h"
#include "router/route/retry_policy.h"

namespace baton {
namespace {

using testing::ElementsAre;

TEST(RoundRobinPolicyTest, EachInTurnAndGroupsApart) {
  RoundRobinPolicy policy;
  const std::vector<int64_t> loads = {9, 0, 5};
  std::vector<size_t> picks;
  for (int i = 0; i < 6; ++i) {
    picks.push_back(policy.Pick("m", loads));
    policy.Pick("other", loads);
  }
  EXPECT_THAT(picks, ElementsAre(0, 1, 2, 0, 1, 2));
  EXPECT_THAT(policy.Order("p", loads), ElementsAre(0, 1, 2));
  EXPECT_THAT(policy.Order("p", loads), ElementsAre(1, 2, 0));
}

TEST(OrderByPrefixTest, APrefixStaysAndANodeMovesOnlyItsShare) {
  const std::vector<std::string> nodes = {"a:1", "b:1", "c:1", "d:1"};
  const std::vector<std::string> fewer = {"a:1", "b:1", "c:1"};
  std::vector<int> first(4);
  int moved = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::string prefix = std::to_string(i);
    const auto order = OrderByPrefix(prefix, nodes, std::vector<int64_t>{0, 2, 1, 0});
    EXPECT_EQ(order, OrderByPrefix(prefix, nodes, std::vector<int64_t>(4, 5)));
    ++first[order[0]];
    const auto without = OrderByPrefix(prefix, fewer, std::vector<int64_t>(3, 0));
    moved += order[0] != 3 && without[0] != order[0];
    // Who takes over from the last node is the next in its own order.
    if (order[0] == 3) {
      EXPECT_EQ(without[0], order[1]);
    }
  }
  EXPECT_EQ(moved, 0);
  for (int count : first) EXPECT_NEAR(count, 250, 60);  // 4 standard deviations
}

TEST(OrderByPrefixTest, AnOverloadedNodeComesLast) {
  const std::vector<std::string> nodes = {"a:1", "b:1", "c:1"};
  const auto calm = OrderByPrefix("p", nodes, std::vector<int64_t>(3, 0));
  std::vector<int64_t> loads(3, 0);
  loads[calm[0]] = 30;  // mean 10, so above 22
  EXPECT_THAT(OrderByPrefix("p", nodes, loads), ElementsAre(calm[1], calm[2], calm[0]));
  loads = {30, 30, 30};
  EXPECT_EQ(OrderByPrefix("p", nodes, loads), calm);
}

// Case rt-03 (a): misses follow the load, ties are broken by a counter and not by index 0.
TEST(LeastLoadedPolicyTest, AnUnknownPromptGoesToTheIdleNode) {
  LeastLoadedPolicy policy(5);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(policy.Pick("m", std::vector<int64_t>{50, 0}), 1u);
    EXPECT_EQ(policy.Order("m", std::vector<int64_t>{50, 0}).front(), 1u);
  }
  std::vector<int> first(8);
  for (int i = 0; i < 800; ++i) ++first[policy.Order("m", std::vector<int64_t>(8, 3)).front()];
  for (int count : first) EXPECT_EQ(count, 100);
}

TEST(LeastLoadedPolicyTest, NeverTheBusiestAndTiesAreSpread) {
  LeastLoadedPolicy policy(1);
  const std::vector<int64_t> loads = {50, 0, 3, 2};
  for (int i = 0; i < 200; ++i) EXPECT_NE(policy.Pick("m", loads), 0u);
  std::vector<int> counts(2);
  for (int i = 0; i < 100; ++i) ++counts[policy.Pick("m", std::vector<int64_t>{7, 7})];
  EXPECT_EQ(counts[0], 50);
  EXPECT_EQ(counts[1], 50);
  EXPECT_THAT(policy.Order("m", loads), ElementsAre(1, 3, 2, 0));
}

TEST(LeastLoadedPolicyTest, KeepsNodesEvenUnderOneByOneArrivals) {
  LeastLoadedPolicy policy(3);
  std::vector<int64_t> loads(4, 0);
  for (int i = 0; i < 400; ++i) ++loads[policy.Pick("m", loads)];
  EXPECT_LE(
      *std::max_element(loads.begin(), loads.end()) - *std::min_element(loads.begin(), loads.end()),
      5);
}

TEST(CircuitBreakerTest, RefusalsOfRequestsNeverOpenIt) {
  using std::chrono::seconds;
  CircuitBreaker breaker(2, seconds(5));
  for (auto code : {absl::StatusCode::kInvalidArgument, absl::StatusCode::kResourceExhausted,
                    absl::StatusCode::kNotFound, absl::StatusCode::kCancelled,
                    absl::StatusCode::kDeadlineExceeded, absl::StatusCode::kFailedPrecondition}) {
    for (int i = 0; i < 10; ++i) breaker.OnEnd(code, seconds(1));
    EXPECT_TRUE(breaker.Allows(seconds(1)));
  }
  breaker.OnEnd(absl::StatusCode::kUnavailable, seconds(1));
  breaker.OnEnd(absl::StatusCode::kOk, seconds(1));
  breaker.OnEnd(absl::StatusCode::kUnavailable, seconds(1));
  EXPECT_TRUE(breaker.Allows(seconds(1))) << "failures were not in a row";
  breaker.OnEnd(absl::StatusCode::kUnavailable, seconds(1));
  EXPECT_FALSE(breaker.Allows(seconds(2)));
  EXPECT_TRUE(breaker.Allows(seconds(6))) << "half open";
  breaker.OnStart(seconds(6));
  EXPECT_FALSE(breaker.Allows(seconds(7))) << "one probe at a time";
  breaker.OnEnd(absl::StatusCode::kOk, seconds(7));
  EXPECT_TRUE(breaker.Allows(seconds(7)));
}

TEST(RetryPolicyTest, BudgetAndBackoff) {
  RetryConfig config;
  config.budget_reserve = 2;
  config.budget_ratio = 0.5;
  RetryPolicy policy(config, 1);
  EXPECT_TRUE(policy.TryTake());
  EXPECT_TRUE(policy.TryTake());
  EXPECT_FALSE(policy.TryTake());
  policy.OnRequest();
  EXPECT_FALSE(policy.TryTake());
  policy.OnRequest();
  EXPECT_TRUE(policy.TryTake());
  for (int attempt = 2; attempt < 70; ++attempt) {
    const auto wait = policy.Backoff(attempt);
    EXPECT_GE(wait, config.backoff / 2);
    EXPECT_LE(wait, config.max_backoff);
  }
}

}  // namespace
}  // namespace baton
