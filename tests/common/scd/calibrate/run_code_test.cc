#include "common/scd/calibrate/run_code.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

#include "common/scd/calibrate/candidate.h"
#include "common/scd/calibrate/held_out.h"
#include "common/scd/calibrate/prefix_way.h"
#include "gtest/gtest.h"
#include "tests/common/scd/calibrate/tiny_pair.h"

namespace baton {
namespace {

int BitsOf(const std::vector<CodecLayer>& layers, LayerRun run) {
  int bits = 0;
  for (int l = run.begin; l < run.end; ++l) {
    const auto& of = layers[static_cast<std::size_t>(l)].bits;
    bits = std::accumulate(of.begin(), of.end(), bits);
  }
  return bits;
}

class RunCodeTest : public ::testing::Test {
 protected:
  RunCodeTest() {
    const ModelConfig& c = tiny_.model().config();
    for (const Document& d : set_.documents) documents_.push_back(&d);
    auto statistics = GatherStatistics(tiny_.pair().producer, {consumer_}, documents_,
                                       {.inputs = true,
                                        .streams = {0, 1},
                                        .sample_rows = 1024,
                                        .max_tokens = 128,
                                        .progress = nullptr},
                                       tiny_.executor());
    if (!statistics.ok()) throw std::runtime_error(statistics.status().ToString());
    statistics_ = *std::move(statistics);
    metrics_.producer.assign(3, Matrix::Identity(2 * c.kv_heads * c.head_dim));
    metrics_.consumers = {metrics_.producer};
    base_.identity = {.producer_weights = "base",
                      .consumer_weights = "tuned",
                      .tokenizer = "bytes",
                      .layers = c.layers,
                      .hidden = c.hidden,
                      .kv_heads = c.kv_heads,
                      .head_dim = c.head_dim};
    const CandidateSpec raw = {.name = "raw", .target = CodeTarget::kProducer, .regression = {}};
    base_.layers =
        MakeCandidates(raw, statistics_, metrics_, 96 * 8, nullptr, tiny_.executor())[0].layers;
  }

  Matrix MetricOf(LayerRun run) const {
    return StreamMetric(consumer_, statistics_, metrics_.consumers[0], run);
  }
  Codec Coded(LayerRun run) const {
    return WithRun(base_, run,
                   StreamLayer(consumer_, statistics_, metrics_.consumers[0], base_, run, 0.1));
  }
  std::vector<double> Kl(const std::vector<Codec>& codecs) {
    std::vector<PrefixWay> ways = {UncodedWay("uncoded", consumer_, tiny_.executor())};
    for (const Codec& codec : codecs) {
      ways.push_back(*CodedWay("", codec, consumer_, 96, tiny_.executor()));
    }
    const auto scores = ScoreHeldOut(
        tiny_.pair().producer, consumer_, absl::MakeConstSpan(documents_).first(8), ways,
        {.prefix = 96, .continuation = 32, .progress = nullptr}, tiny_.executor());
    if (!scores.ok()) throw std::runtime_error(scores.status().ToString());
    std::vector<double> kl;
    for (const WayScore& way : scores->ways) kl.push_back(way.kl);
    return kl;
  }

  TinyPair tiny_{0.5f};
  const ProbedModel& consumer_ = tiny_.pair().consumer;
  DocumentSet set_ = RandomDocuments(40, 128, 3);
  std::vector<const Document*> documents_;
  CalibrationStatistics statistics_;
  TargetMetrics metrics_;
  Codec base_;
};

TEST_F(RunCodeTest, TheRunTakesNoMoreThanItsLayersHad) {
  for (const LayerRun run : {LayerRun{0, 3}, LayerRun{1, 3}, LayerRun{1, 2}}) {
    SCOPED_TRACE(LayerRunText(run));
    const Codec codec = Coded(run);
    ASSERT_TRUE(CheckCodec(codec).ok()) << CheckCodec(codec);
    EXPECT_EQ(codec.run(), run);
    EXPECT_LE(BitsOf(codec.layers, run), BitsOf(base_.layers, run));
    for (int l = 0; l < 3; ++l) {
      const auto at = static_cast<std::size_t>(l);
      if (!run.contains(l)) EXPECT_EQ(codec.layers[at].encoder, base_.layers[at].encoder);
    }
  }
}

// Both models have the same embeddings, so a run of all layers from whole codes of them is the
// consumer's own prefill but for 8 bits' rounding; the producer's own K/V, uncoded, are not.
TEST_F(RunCodeTest, ARunOfAllLayersIsTheConsumersOwnPrefill) {
  const Codec codec = Coded({0, 3});
  EXPECT_EQ(codec.layers[0].rank(), 64);
  const auto& bits = codec.layers[0].bits;
  EXPECT_EQ(std::count(bits.begin(), bits.end(), 8), 64);
  const std::vector<double> kl = Kl({codec, base_});
  EXPECT_GT(kl[0], 1e-3);
  EXPECT_GT(kl[2], 1e-3);
  EXPECT_LT(kl[1], kl[0] / 50);
}

TEST_F(RunCodeTest, AShorterRunHelpsLess) {
  const std::vector<double> kl = Kl({Coded({0, 3}), Coded({1, 3}), base_});
  EXPECT_LT(kl[1], kl[2]);
  EXPECT_LT(kl[2], kl[3]);
}

// An error e of the stream reaches the keys and values of each layer of the run: what it does to
// them, under the identity, against the model's own projection of rows with and without it.
TEST_F(RunCodeTest, TheMetricIsWhatAnErrorDoesToKeysAndValues) {
  const Matrix one = MetricOf({1, 2}), other = MetricOf({2, 3}), both = MetricOf({1, 3});
  for (std::size_t i = 0; i < both.values.size(); ++i) {
    ASSERT_NEAR(both.values[i], one.values[i] + other.values[i],
                1e-9 + 1e-6 * std::abs(both.values[i]));
  }
  auto probe = ModelProbe::Create(consumer_, 128, tiny_.executor());
  ASSERT_TRUE(probe.ok());
  const auto kv_of = [&](const std::vector<float>& stream) {
    (*probe)->StartWith(stream);
    return (*probe)->RunLayer(1).kv;
  };
  constexpr int kRows = 64;
  std::mt19937 random(5);
  std::normal_distribution<float> normal;
  // Rows of the rms that rows have there, each with a small error of its own.
  const double energy = statistics_.layers[1].consumer_queries[0].Energy();
  std::vector<float> stream(kRows * 64), moved;
  for (int r = 0; r < kRows; ++r) {
    float* row = stream.data() + r * 64;
    std::generate_n(row, 64, [&] { return normal(random); });
    const double square = std::inner_product(row, row + 64, row, 0.0);
    const auto scale = static_cast<float>(std::sqrt(energy / square));
    std::transform(row, row + 64, row, [scale](float x) { return x * scale; });
  }
  std::vector<double> errors(stream.size());
  double said = 0;
  for (int r = 0; r < kRows; ++r) {
    double* e = errors.data() + r * 64;
    std::generate_n(e, 64, [&] { return 1e-3 * normal(random); });
    for (std::int64_t i = 0; i < 64; ++i) {
      for (std::int64_t j = 0; j < 64; ++j) said += e[i] * one.at(i, j) * e[j];
    }
  }
  for (std::size_t i = 0; i < stream.size(); ++i) {
    moved.push_back(stream[i] + static_cast<float>(errors[i]));
  }
  const std::vector<float> before = kv_of(stream), after = kv_of(moved);
  double done = 0;
  for (std::size_t i = 0; i < before.size(); ++i) {
    const double d = static_cast<double>(after[i]) - before[i];
    done += d * d;
  }
  // That an error along a row moves only its rms is left aside: one direction of 64.
  EXPECT_NEAR(done, said, 0.1 * said);
}

}  // namespace
}  // namespace baton
