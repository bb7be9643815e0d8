#include "common/scd/calibrate/held_out.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "common/model/single_sequence.h"
#include "gtest/gtest.h"
#include "tests/common/scd/calibrate/tiny_pair.h"

namespace baton {
namespace {

HeldOutOptions Options() {
  HeldOutOptions options;
  options.prefix = 96;
  options.continuation = 32;
  return options;
}

std::vector<const Document*> All(const DocumentSet& set) {
  std::vector<const Document*> all;
  for (const Document& d : set.documents) all.push_back(&d);
  return all;
}

TEST(HeldOutTest, EqualModelsHandOverWithoutLoss) {
  TinyPair tiny(0);
  const DocumentSet set = RandomDocuments(3, 128, 1);
  const auto scores = ScoreHeldOut(tiny.pair().producer, tiny.pair().consumer, All(set),
                                   {UncodedWay("raw", tiny.pair().consumer, tiny.executor())},
                                   Options(), tiny.executor());
  ASSERT_TRUE(scores.ok()) << scores.status();
  ASSERT_EQ(scores->ways.size(), 1U);
  EXPECT_EQ(scores->ways[0].name, "raw");
  // Token-identical: what is left are roundings of the sum of p (log p - log p).
  EXPECT_NEAR(scores->ways[0].kl, 0, 1e-9);
  EXPECT_EQ(scores->ways[0].top1, 1);
  EXPECT_EQ(scores->ways[0].nll, scores->reference_nll);
}

TEST(HeldOutTest, ReferenceIsTheConsumersOwnSurprisal) {
  TinyPair tiny(0.5f);
  const ProbedModel& consumer = tiny.pair().consumer;
  const DocumentSet set = RandomDocuments(4, 128, 2);
  const auto scores =
      ScoreHeldOut(tiny.pair().producer, consumer, All(set), {}, Options(), tiny.executor());
  ASSERT_TRUE(scores.ok()) << scores.status();
  double sum = 0;
  std::int64_t count = 0;
  ForwardPass pass(consumer.model, consumer.adapters, tiny.executor());
  for (const Document& d : set.documents) {
    const auto n = static_cast<std::int32_t>(d.tokens.size());
    auto sequence = SingleSequence::Create(consumer.model->config(), DType::kF32, n);
    ASSERT_TRUE(sequence.ok());
    std::vector<std::int32_t> positions(d.tokens.size());
    std::iota(positions.begin(), positions.end(), 0);
    const SequenceSlice slice{0, n, &(*sequence)->view(), consumer.adapter};
    float* h = pass.Embed(d.tokens);
    pass.RunLayers(0, static_cast<int>(consumer.model->config().layers), h,
                   {.positions = positions, .sequences = {&slice, 1}}, nullptr);
    const std::vector<float> all = pass.Surprisal(h, {d.tokens.data() + 1, d.tokens.size() - 1});
    // The continuation is the last 32 tokens or the last third, and its first is not predicted.
    const int predicted = std::min(32, n / 3) - 1;
    sum = std::accumulate(all.end() - predicted, all.end(), sum);
    count += predicted;
  }
  EXPECT_EQ(scores->tokens, count);
  EXPECT_EQ(scores->documents, 4);
  EXPECT_NEAR(scores->reference_nll, sum / static_cast<double>(count), 1e-5);
}

TEST(HeldOutTest, WorseKvScoresWorse) {
  TinyPair tiny(0.05f);
  const DocumentSet set = RandomDocuments(4, 128, 3);
  const std::int64_t kv = 2 * tiny.model().config().kv_heads * tiny.model().config().head_dim;
  const PrefixWay nothing = {"nothing", [kv](const ProducerRows& rows, float* out) {
                               std::fill_n(out, rows.rows * kv, 0.0f);
                             }};
  const auto scores =
      ScoreHeldOut(tiny.pair().producer, tiny.pair().consumer, All(set),
                   {UncodedWay("raw", tiny.pair().consumer, tiny.executor()), nothing}, Options(),
                   tiny.executor());
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_GT(scores->ways[0].kl, 0);
  EXPECT_GT(scores->ways[1].kl, 2 * scores->ways[0].kl);
  EXPECT_LT(scores->ways[1].top1, scores->ways[0].top1);
  EXPECT_GT(scores->ways[0].kl_error, 0);
}

// The sinks are the consumer's own whatever a way says of them.
TEST(HeldOutTest, FirstRowsOfAWayMeanNothing) {
  TinyPair tiny(0);
  const DocumentSet set = RandomDocuments(2, 128, 4);
  const std::int64_t kv = 2 * tiny.model().config().kv_heads * tiny.model().config().head_dim;
  PrefixWay way = UncodedWay("raw", tiny.pair().consumer, tiny.executor());
  const PrefixWay spoilt = {"spoilt", [kv, way](const ProducerRows& rows, float* out) {
                              way.decode(rows, out);
                              std::fill_n(out, 4 * kv, 1e6f);
                            }};
  const auto scores = ScoreHeldOut(tiny.pair().producer, tiny.pair().consumer, All(set), {spoilt},
                                   Options(), tiny.executor());
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_EQ(scores->ways[0].top1, 1);
  EXPECT_NEAR(scores->ways[0].kl, 0, 1e-9);
}

// Whatever a way says of the seam's rows, the consumer runs them; all of them are its own prefill.
TEST(HeldOutTest, ASeamIsTheConsumersOwn) {
  TinyPair tiny(0.5f);
  const DocumentSet set = RandomDocuments(3, 128, 5);
  const std::int64_t kv = 2 * tiny.model().config().kv_heads * tiny.model().config().head_dim;
  const PrefixWay way = UncodedWay("raw", tiny.pair().consumer, tiny.executor());
  const PrefixWay spoilt = {"spoilt", [kv, way](const ProducerRows& rows, float* out) {
                              way.decode(rows, out);
                              std::fill_n(out + (rows.rows - 20) * kv, 20 * kv, 1e6f);
                            }};
  const auto scores =
      ScoreHeldOut(tiny.pair().producer, tiny.pair().consumer, All(set),
                   {way, WithSeam(way, 20), WithSeam(spoilt, 20), WithSeam(spoilt, 500)}, Options(),
                   tiny.executor());
  ASSERT_TRUE(scores.ok()) << scores.status();
  EXPECT_EQ(scores->ways[1].name, "raw+seam20");
  EXPECT_LT(scores->ways[1].kl, scores->ways[0].kl);
  EXPECT_EQ(scores->ways[2].kl, scores->ways[1].kl);
  EXPECT_NEAR(scores->ways[3].kl, 0, 1e-9);
}

}  // namespace
}  // namespace baton
