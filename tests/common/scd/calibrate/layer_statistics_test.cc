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

// Against the probes' states, row by row. The models differ in an adapter: not in their embeddings.
TEST(LayerStatisticsTest, StreamsAreWhatEntersALayer) {
  TinyPair tiny(0.5f);
  const ProbedModel& producer = tiny.pair().producer;
  const ProbedModel& consumer = tiny.pair().consumer;
  const DocumentSet set = RandomDocuments(1, 128, 2);
  const GatherOptions options = {
      .streams = {0, 2}, .sample_rows = 256, .max_tokens = 128, .progress = nullptr};
  const auto s =
      GatherStatistics(producer, {consumer}, {&set.documents[0]}, options, tiny.executor());
  ASSERT_TRUE(s.ok()) << s.status();
  ASSERT_EQ(s->streams.size(), 2U);
  const Moments embedded = s->streams.at(0).sums.Finish(0);
  EXPECT_EQ(embedded.source_mean, embedded.target_mean);
  EXPECT_EQ(embedded.source.values, embedded.cross.values);

  const auto mean_of = [&](const ProbedModel& of) {
    auto probe = ModelProbe::Create(of, 128, tiny.executor());
    EXPECT_TRUE(probe.ok());
    (*probe)->Start(set.documents[0].tokens);
    for (int l = 0; l < 2; ++l) (*probe)->RunLayer(l);
    const LayerStates& states = (*probe)->RunLayer(2);
    std::vector<double> mean(64);
    for (std::int64_t r = kSinkTokens; r < states.rows; ++r) {
      double square = 0;
      for (std::size_t i = 0; i < 64; ++i) {
        const double x = states.hidden[r * 64 + i] * states.rms[r];
        mean[i] += x / static_cast<double>(states.rows - kSinkTokens);
        square += x * x;
      }
      EXPECT_NEAR(square, states.energy[r], 1e-4 * states.energy[r]);
    }
    return mean;
  };
  const Moments above = s->streams.at(2).sums.Finish(0);
  const std::vector<double> from = mean_of(producer), own = mean_of(consumer);
  for (std::size_t i = 0; i < 64; ++i) {
    EXPECT_NEAR(above.source_mean[i], from[i], 1e-6);
    EXPECT_NEAR(above.target_mean[i], own[i], 1e-6);
  }
  EXPECT_NE(above.source_mean, above.target_mean);
  EXPECT_EQ(s->streams.at(2).sample.size(), s->tokens);
}

}  // namespace
}  // namespace baton
