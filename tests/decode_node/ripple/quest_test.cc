#include "decode_node/ripple/quest.h"

#include <random>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(QuestTest, BoundHoldsForEveryToken) {
  constexpr std::int64_t kTokens = 75;
  constexpr std::int64_t kDim = 8;
  std::mt19937 rng(2);
  std::normal_distribution<float> normal;
  std::vector<float> keys(kTokens * kDim);
  for (float& k : keys) k = normal(rng);
  const QuestPages pages = SummarisePages(keys, kDim);
  for (int trial = 0; trial < 50; ++trial) {
    std::vector<float> query(kDim);
    for (float& q : query) q = normal(rng);
    const std::vector<float> bounds = PageBounds(pages, query);
    ASSERT_EQ(bounds.size(), 5U);
    for (std::int64_t t = 0; t < kTokens; ++t) {
      float dot = 0;
      for (std::int64_t i = 0; i < kDim; ++i) dot += query[i] * keys[t * kDim + i];
      EXPECT_LE(dot, bounds[t / 16] + 1e-5F);
    }
  }
}

TEST(QuestTest, SelectsTheHighestMeanBoundOfTheGroup) {
  const QuestPages pages = SummarisePages({1, 2, 9, 0, 3, 3}, 1, 2);  // highs 2, 9, 3
  EXPECT_EQ(SelectPages(pages, {1, 2}, 2), std::vector<std::int32_t>({1, 2}));
  EXPECT_EQ(SelectPages(pages, {1}, 7), std::vector<std::int32_t>({0, 1, 2}));
}

}  // namespace
}  // namespace baton
