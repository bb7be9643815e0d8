#include "decode_node/ripple/budgets.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "gtest/gtest.h"

namespace baton {
namespace {

using Tokens = std::vector<std::int64_t>;

TEST(BudgetsTest, RandomSensitivitiesSpendTheTotalWithinBoundsAndInOrder) {
  std::mt19937 rng(1);
  for (int trial = 0; trial < 3000; ++trial) {
    const auto layers = 1 + rng() % 40;
    std::vector<double> s(layers);
    for (double& v : s) v = std::exp(std::normal_distribution<>(0, 3)(rng));
    const RippleOptions options{
        .ratio = trial % 3 == 0 ? std::nullopt : std::optional<double>(1 + rng() % 20),
        .clip = 1.0 + rng() % 15,
        .scale = trial % 2 == 0 ? SensitivityScale::kLog : SensitivityScale::kLinear,
        .centred = trial % 5 != 0};
    const auto weights = RippleWeights(s, options);
    ASSERT_TRUE(weights.ok()) << weights.status();
    const std::int64_t page = trial % 4 == 0 ? 16 : 1;
    const std::int64_t context = 36 + rng() % 3000;
    const std::int64_t low = (36 + page - 1) / page * page;
    const std::int64_t high = (context + page - 1) / page * page;
    const auto count = static_cast<std::int64_t>(layers);
    const std::int64_t total = count * low + rng() % (count * (high - low) + 1);
    if (total >= count * context) continue;
    const BudgetLimits limits{total, context, 36, page};
    const auto budgets = WeightedBudgets(*weights, limits);
    ASSERT_TRUE(budgets.ok()) << budgets.status();
    ASSERT_EQ(budgets->total, total / page * page);
    ASSERT_EQ(std::accumulate(budgets->tokens.begin(), budgets->tokens.end(), std::int64_t{0}),
              budgets->total);
    for (std::size_t a = 0; a < layers; ++a) {
      ASSERT_GE(budgets->tokens[a], low);
      ASSERT_LE(budgets->tokens[a], high);
      for (std::size_t b = 0; b < layers; ++b) {
        if ((*weights)[a] > (*weights)[b]) {
          ASSERT_GE(budgets->tokens[a], budgets->tokens[b]);
        }
      }
    }
    // Exact ties go to the lower layer, so a token may move; nothing else depends on the order.
    const std::vector<double> reversed(weights->rbegin(), weights->rend());
    const auto other = WeightedBudgets(reversed, limits);
    ASSERT_TRUE(other.ok());
    for (std::size_t a = 0; a < layers; ++a) {
      ASSERT_LE(std::abs(budgets->tokens[a] - other->tokens[layers - 1 - a]), page);
    }
  }
}

TEST(BudgetsTest, WeightsByHand) {
  // s~ = 0, 0.5, 1; exponents -0.5, 0, 0.5 of 16.
  const auto centred = RippleWeights({1, 2, 3}, {});
  ASSERT_TRUE(centred.ok());
  EXPECT_NEAR((*centred)[0], 0.25, 1e-12);
  EXPECT_NEAR((*centred)[1], 1, 1e-12);
  EXPECT_NEAR((*centred)[2], 4, 1e-12);
  const auto literal = RippleWeights({1, 2, 3}, {.centred = false});
  ASSERT_TRUE(literal.ok());
  EXPECT_NEAR((*literal)[0], 1, 1e-12);
  EXPECT_NEAR((*literal)[2], 4, 1e-12);  // 16, clipped
  const auto automatic = RippleWeights(
      {1, 10, 100}, {.ratio = std::nullopt, .damage_exponent = 1, .scale = SensitivityScale::kLog});
  ASSERT_TRUE(automatic.ok());
  EXPECT_NEAR((*automatic)[2], std::sqrt(10), 1e-9);
  EXPECT_EQ(*RippleWeights({2, 2}, {}), std::vector<double>({1, 1}));
  EXPECT_EQ(*RippleWeights({0, 0}, {.scale = SensitivityScale::kLog}), std::vector<double>({1, 1}));
  EXPECT_FALSE(RippleWeights({1, -1}, {}).ok());
  EXPECT_FALSE(RippleWeights({1, NAN}, {}).ok());
  EXPECT_FALSE(RippleWeights({1, 2}, {.ratio = 0.5}).ok());
}

TEST(BudgetsTest, RemaindersGoToTheLowerLayerOnTies) {
  EXPECT_EQ(UniformBudgets(4, {.total = 42, .context = 100})->tokens, Tokens({11, 11, 10, 10}));
}

TEST(BudgetsTest, ZeroPreferencesStillSpendTheTotal) {
  EXPECT_EQ(WeightedBudgets({1, 0, 0}, {.total = 200, .context = 100})->tokens,
            Tokens({100, 50, 50}));
  EXPECT_EQ(WeightedBudgets({0, 0}, {.total = 20, .context = 100})->tokens, Tokens({10, 10}));
}

TEST(BudgetsTest, InfeasibleTotalNamesTheSmallest) {
  const auto status = UniformBudgets(3, {.total = 107, .context = 100, .min_layer = 36}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(status.message()).find("smallest feasible total is 108"),
            std::string::npos);
}

// Shared case cmp-01: budgets that round to nothing.
TEST(BudgetsTest, TinyBudgetsAreRefusedOrKeepTheWindow) {
  EXPECT_FALSE(UniformBudgets(32, {.total = 13, .context = 10}).ok());  // 10 * 0.04 * 32
  EXPECT_FALSE(UniformBudgets(32, {.total = 0, .context = 10}).ok());
  EXPECT_EQ(UniformBudgets(2, {.total = 2, .context = 1, .min_layer = 36})->tokens, Tokens({1, 1}));
  EXPECT_EQ(PyramidBudgets(1, 20, {.total = 5, .context = 10})->tokens, Tokens({5}));
  EXPECT_EQ(PyramidPublished(1, 1000, {.capacity = 128})->tokens.size(), 1U);
  EXPECT_EQ(UniformBudgets(2, {.total = 999, .context = 10})->tokens, Tokens({10, 10}));
}

// By hand: past 64, least 3, most 125; (125 - 3) / 31 = 3, so the last layer gets 125 - 93 = 32.
TEST(BudgetsTest, PublishedPyramidOverspends) {
  const auto budgets = PyramidPublished(32, 4096, {.capacity = 128});
  ASSERT_TRUE(budgets.ok());
  EXPECT_EQ(budgets->tokens.front(), 125 + 64);
  EXPECT_EQ(budgets->tokens.back(), 32 + 64);
  EXPECT_EQ(budgets->total, 32 * 64 + 16 * (125 + 32));
  EXPECT_GT(budgets->total, 32 * 128);
}

}  // namespace
}  // namespace baton
