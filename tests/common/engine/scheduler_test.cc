#include "common/engine/scheduler.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "common/prefix_hash/block_hash.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using Rows = std::vector<std::int32_t>;

TEST(Scheduler, PriorityThenArrival) {
  const std::map<ServiceKey, char> queue = {
      {{0, 1}, 'c'}, {{5, 4}, 'b'}, {{0, 2}, 'd'}, {{5, 3}, 'a'}, {{-1, 0}, 'e'}};
  std::string order;
  for (const auto& [key, name] : queue) order += name;
  EXPECT_EQ(order, "abcde");
}

TEST(Scheduler, BudgetGoesInOrder) {
  const std::vector<PromptDemand> demands = {{0, 100}, {50, 60}, {0, 500}};
  EXPECT_EQ(SplitBudget(demands, 50), (Rows{50, 0, 0}));
  EXPECT_EQ(SplitBudget(demands, 105), (Rows{100, 5, 0}));
  EXPECT_EQ(SplitBudget(demands, 1000), (Rows{100, 10, 500}));
  EXPECT_EQ(SplitBudget({}, 10), Rows{});
}

TEST(Scheduler, WholePagesEndAtSixteenOrAtTheEnd) {
  EXPECT_EQ(SplitBudget(std::vector<PromptDemand>{{0, 100, true}}, 50), Rows{48});
  EXPECT_EQ(SplitBudget(std::vector<PromptDemand>{{48, 100, true}}, 52), Rows{52});
  EXPECT_EQ(SplitBudget(std::vector<PromptDemand>{{0, 4, true}}, 3), Rows{0});
  // What a whole page can't use goes to the next.
  EXPECT_EQ(SplitBudget(std::vector<PromptDemand>{{0, 100, true}, {0, 100}}, 50), (Rows{48, 2}));
}

TEST(Scheduler, BudgetIsNeverExceeded) {
  std::mt19937 rng(3);
  for (int round = 0; round < 2000; ++round) {
    std::vector<PromptDemand> demands(rng() % 6);
    for (auto& d : demands) {
      d.whole_pages = rng() % 2;
      d.begin = static_cast<std::int32_t>(rng() % 20) * 16;
      d.end = d.begin + 1 + static_cast<std::int32_t>(rng() % 300);
    }
    const auto budget = static_cast<std::int32_t>(16 + rng() % 300);
    const Rows rows = SplitBudget(demands, budget);
    std::int32_t sum = 0;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      ASSERT_GE(rows[i], 0);
      ASSERT_LE(demands[i].begin + rows[i], demands[i].end);
      if (demands[i].whole_pages && demands[i].begin + rows[i] < demands[i].end) {
        ASSERT_EQ((demands[i].begin + rows[i]) % 16, 0);
      }
      sum += rows[i];
    }
    ASSERT_LE(sum, budget);
    ASSERT_TRUE(demands.empty() || sum > 0);  // somebody always goes on
  }
}

TEST(Scheduler, OneTokenIsAlwaysRecomputed) {
  EXPECT_EQ(UsableCachedTokens(3, 200, false), 192);
  EXPECT_EQ(UsableCachedTokens(3, 193, false), 192);
  EXPECT_EQ(UsableCachedTokens(3, 192, false), 128);
  EXPECT_EQ(UsableCachedTokens(3, 192, true), 192);
  EXPECT_EQ(UsableCachedTokens(0, 192, true), 0);
  EXPECT_EQ(UsableCachedTokens(5, 64, false), 0);
}

}  // namespace
}  // namespace baton
