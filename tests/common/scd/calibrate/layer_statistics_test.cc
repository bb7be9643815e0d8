#include "common/scd/calibrate/layer_statistics.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/common/scd/calibrate/tiny_pair.h"

namespace baton {
namespace {

void ExpectSame(const Moments& a, const Moments& b) {
  EXPECT_EQ(a.count, b.count);
  EXPECT_EQ(a.source_mean, b.source_mean);
  EXPECT_EQ(a.target_mean, b.target_mean);
  EXPECT_EQ(a.source.values, b.source.values);
  EXPECT_EQ(a.cross.values, b.cross.values);
  EXPECT_EQ(a.target.values, b.target.values);
}

TEST(LayerStatisticsTest, ConsumersTogetherGiveWhatEachGivesAlone) {
  TinyPair tiny;
  const CalibrationGroup group = tiny.Group({0.5f, 1.0f});
  const DocumentSet set = RandomDocuments(6, 128, 2);
  std::vector<const Document*> documents;
  for (const Document& d : set.documents) documents.push_back(&d);
  for (const CodeSource source : {CodeSource::kHidden, CodeSource::kKv}) {
    const GatherOptions options = {
        .source = source, .sample_rows = 256, .max_tokens = 128, .progress = nullptr};
    const auto both =
        GatherStatistics(group.producer, {group.consumers[0].model, group.consumers[1].model},
                         documents, options, tiny.executor());
    ASSERT_TRUE(both.ok()) << both.status();
    EXPECT_EQ(both->consumers, 2U);
    for (std::size_t c = 0; c < 2; ++c) {
      const auto one = GatherStatistics(group.producer, {group.consumers[c].model}, documents,
                                        options, tiny.executor());
      ASSERT_TRUE(one.ok()) << one.status();
      EXPECT_EQ(one->tokens, both->tokens);
      for (std::size_t l = 0; l < one->layers.size(); ++l) {
        SCOPED_TRACE(l);
        ExpectSame(one->Consumer(l), both->Consumer(l, c));
        ExpectSame(one->Producer(l), both->Producer(l));
        EXPECT_EQ(one->layers[l].sample.values(), both->layers[l].sample.values());
        EXPECT_EQ(one->layers[l].consumer_queries[0].Moment().values,
                  both->layers[l].consumer_queries[c].Moment().values);
      }
    }
  }
}

}  // namespace
}  // namespace baton
