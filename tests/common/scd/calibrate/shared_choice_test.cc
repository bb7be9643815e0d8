#include "common/scd/calibrate/shared_choice.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using testing::ElementsAre;

TEST(SharedChoiceTest, OneConsumerTakesItsLowest) {
  const std::vector<ConsumerKl> one = {{.uncoded = 0.5, .candidates = {0.3, 0.2, 0.4}}};
  EXPECT_EQ(BestForAll(one), 1U);
  const SharedChoice choice = ChooseShared(one, {"a", "b", "a"}, {0, 1, 2});
  EXPECT_THAT(choice.chosen, ElementsAre(1));
  EXPECT_EQ(choice.encoder, 1U);
}

// The second consumer has drifted ten times as far: in nats it would decide alone.
TEST(SharedChoiceTest, ConsumersCountAlikeHoweverFarTheyDrifted) {
  const std::vector<ConsumerKl> two = {{.uncoded = 0.1, .candidates = {0.02, 0.09}},
                                       {.uncoded = 1.0, .candidates = {0.5, 0.4}}};
  // (.2 + .5) / 2 against (.9 + .4) / 2.
  EXPECT_EQ(BestForAll(two), 0U);
  const SharedChoice choice = ChooseShared(two, {"a", "b"}, {0, 1});
  EXPECT_THAT(choice.chosen, ElementsAre(0, 0));
  ASSERT_EQ(choice.encoders.size(), 2U);
  EXPECT_DOUBLE_EQ(choice.encoders[0].relative_kl, 0.35);
  EXPECT_DOUBLE_EQ(choice.encoders[1].relative_kl, 0.65);
}

TEST(SharedChoiceTest, AConsumerWithoutDriftDecidesNothing) {
  const std::vector<ConsumerKl> two = {{.uncoded = 1e-9, .candidates = {1e-5, 1e-6}},
                                       {.uncoded = 0.5, .candidates = {0.1, 0.2}}};
  EXPECT_EQ(BestForAll(two), 0U);
}

TEST(SharedChoiceTest, DecodersOfOneEncoderMayDiffer) {
  // raw, closed, and the first one trained: which helped only the first consumer.
  const std::vector<ConsumerKl> two = {{.uncoded = 1, .candidates = {0.6, 0.3, 0.2}},
                                       {.uncoded = 1, .candidates = {0.2, 0.3, 0.9}}};
  const SharedChoice choice = ChooseShared(two, {"raw", "closed", "raw"}, {0, 1, 2});
  EXPECT_THAT(choice.chosen, ElementsAre(2, 0));
  ASSERT_EQ(choice.encoders.size(), 2U);
  EXPECT_THAT(choice.encoders[0].candidates, ElementsAre(0, 2));
  EXPECT_DOUBLE_EQ(choice.encoders[0].relative_kl, 0.2);
  EXPECT_EQ(choice.encoder, 0U);
}

TEST(SharedChoiceTest, OnlyThoseNamedAreChosenFrom) {
  const std::vector<ConsumerKl> one = {{.uncoded = 1, .candidates = {0.1, 0.4, 0.3, 0.2}}};
  const SharedChoice choice = ChooseShared(one, {"a", "b", "c", "a"}, {1, 2});
  EXPECT_THAT(choice.chosen, ElementsAre(2));
  ASSERT_EQ(choice.encoders.size(), 2U);
  EXPECT_THAT(choice.encoders[1].candidates, ElementsAre(2));
}

TEST(SharedChoiceTest, TheFirstOfEqualOnesIsTaken) {
  const std::vector<ConsumerKl> one = {{.uncoded = 1, .candidates = {0.3, 0.3}}};
  EXPECT_EQ(BestForAll(one), 0U);
  EXPECT_THAT(ChooseShared(one, {"a", "a"}, {0, 1}).chosen, ElementsAre(0));
  EXPECT_THAT(ChooseShared(one, {"a", "b"}, {0, 1}).chosen, ElementsAre(0));
}

}  // namespace
}  // namespace baton
