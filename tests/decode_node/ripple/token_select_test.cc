#include "decode_node/ripple/token_select.h"

#include "decode_node/ripple/attention_scores.h"
#include "decode_node/ripple/group_select.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(TokenSelectTest, TiesGoToTheLowerPosition) {
  EXPECT_EQ(SelectTop({1, 2, 2, 2, 1, 1}, 2, 2), KeptPositions({{1, 2}, {0, 1}}));
}

TEST(TokenSelectTest, EnoughBudgetKeepsAll) {
  const std::vector<float> scores = {3, 1, 2, 5, 4, 6};
  const KeptPositions all = SelectAll(2, 3);
  EXPECT_EQ(SelectTop(scores, 2, 3), all);
  EXPECT_EQ(SelectHeavyHitters(scores, 2, 9, 4), all);
  EXPECT_EQ(SelectStreaming(2, 3, 8), all);
  EXPECT_EQ(SelectAdaKv(scores, 2, 3), all);
  const std::vector<std::int32_t> starts = {0, 2};
  EXPECT_EQ(SelectWithinGroups(scores, 2, starts, 3), all);
}

TEST(TokenSelectTest, HeavyHittersKeepTheRecent) {
  EXPECT_EQ(SelectHeavyHitters({1, 9, 2, 8, 0, 0}, 1, 4, 2), KeptPositions({{1, 3, 4, 5}}));
}

TEST(TokenSelectTest, AccumulatesOverQueries) {
  SerialExecutor serial;
  const std::vector<float> p = {1, 0, 0.25F, 0.75F};  // [1 head, 2 queries, 2 tokens]
  EXPECT_EQ(AccumulatedScores({1, 1, 2, 1}, p, Accumulation::kSum, serial),
            std::vector<float>({1.25F, 0.75F}));
}

TEST(TokenSelectTest, MaxPoolingTakesTheNeighboursMaximum) {
  SerialExecutor serial;
  const std::vector<float> p = {0.5F, 0, 0, 0.25F, 0.25F};
  EXPECT_EQ(SnapKvScores({1, 1, 5, 1}, 1, p, {3, Pooling::kMax}, serial),
            std::vector<float>({0.5F, 0.5F, 0.25F, 0.25F, 1.5F}));
}

TEST(TokenSelectTest, SentencesAreKeptWholeAndTheLastIsCut) {
  EXPECT_EQ(SelectWithinGroups({1, 1, 5, 5, 2, 3, 1}, 1, {0, 2, 4}, 3), KeptPositions({{2, 3, 5}}));
}

}  // namespace
}  // namespace baton
