#include "common/scd/evaluate/selective_way.h"

#include <algorithm>
#include <vector>

#include "gtest/gtest.h"
#include "tests/common/scd/calibrate/tiny_pair.h"

namespace baton {
namespace {

class SelectiveWayTest : public testing::Test {
 protected:
  // KL of recomputing each of these runs.
  std::vector<double> Kl(const std::vector<LayerRun>& runs) {
    std::vector<PrefixWay> ways;
    for (const LayerRun run : runs) {
      auto way = SelectiveWay(tiny_.pair().consumer, run, 96, tiny_.executor());
      EXPECT_TRUE(way.ok()) << way.status();
      ways.push_back(*std::move(way));
    }
    const auto scores =
        ScoreHeldOut(tiny_.pair().producer, tiny_.pair().consumer, Documents(), ways,
                     {.prefix = 96, .continuation = 32, .progress = nullptr}, tiny_.executor());
    EXPECT_TRUE(scores.ok()) << scores.status();
    std::vector<double> kl;
    for (const WayScore& way : scores->ways) kl.push_back(way.kl);
    return kl;
  }
  std::vector<const Document*> Documents() const {
    std::vector<const Document*> documents;
    for (const Document& d : set_.documents) documents.push_back(&d);
    return documents;
  }

  TinyPair tiny_{0.5f};
  DocumentSet set_ = RandomDocuments(3, 128, 4);
};

// All layers from the embeddings on, which both models share, are the consumer's own prefill; none
// are raw K/V. fp32 rounds each stage by about 1e-7, squared in KL.
TEST_F(SelectiveWayTest, EveryLayerIsTheOwnPrefill) {
  const std::vector<double> kl = Kl({{0, 3}, {0, 0}, {1, 3}});
  EXPECT_LT(kl[0], 1e-6);
  EXPECT_GT(kl[1], 1e-3);
  EXPECT_GT(kl[2], 1e-6) << "what the first layer changed is not in the producer's hidden state";
}

TEST_F(SelectiveWayTest, TheRunWithTheLowestKlIsChosen) {
  const auto runs =
      ChooseLayerRuns(tiny_.pair().producer, tiny_.pair().consumer, Documents(),
                      {.prefix = 96, .continuation = 32, .progress = nullptr}, tiny_.executor());
  ASSERT_TRUE(runs.ok()) << runs.status();
  ASSERT_EQ(runs->size(), 3U);  // of 3 layers: one, one and two
  const std::vector<double> one = Kl({{0, 1}, {1, 2}, {2, 3}, (*runs)[0]});
  EXPECT_EQ(one[3], *std::min_element(one.begin(), one.end()));
  const std::vector<double> two = Kl({{0, 2}, {1, 3}, (*runs)[2]});
  EXPECT_EQ(two[2], *std::min_element(two.begin(), two.end()));
}

TEST_F(SelectiveWayTest, BytesAreThoseOfTheOtherLayersAndOneState) {
  // 2 KV heads of 16 numbers, K and V, and a hidden size of 64, 2 bytes each.
  EXPECT_EQ(SelectiveBytes(tiny_.model().config(), {1, 3}), 2 * (64 + 64));
}

}  // namespace
}  // namespace baton
