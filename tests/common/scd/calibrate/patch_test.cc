#include "common/scd/calibrate/patch.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "common/model/model_weights.h"
#include "common/scd/calibrate/candidate.h"
#include "common/scd/calibrate/held_out.h"
#include "common/scd/calibrate/prefix_way.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/scd/calibrate/tiny_pair.h"

namespace baton {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A world of five layers in which 1 and 3 do the same, 4 helps only beside 0, and 2 hurts.
absl::StatusOr<std::vector<double>> MadeUp(const std::vector<std::vector<std::size_t>>& sets) {
  std::vector<double> kl;
  for (const auto& set : sets) {
    const std::set<std::size_t> s(set.begin(), set.end());
    double value = 1;
    if (s.count(1) + s.count(3) > 0) value -= s.count(1) > 0 ? 0.3 : 0.25;
    if (s.count(0) > 0) value -= 0.1;
    if (s.count(2) > 0) value += 0.2;
    if (s.count(4) > 0) value += s.count(0) > 0 ? -0.05 : 0.01;
    kl.push_back(value);
  }
  return kl;
}

PatchSelection Selected(PatchChoice choice, std::size_t most = 8,
                        std::vector<std::size_t> layers = {}) {
  const std::vector<double> errors = {0.1, 0.2, 0.9, 0.4, 0.3};
  auto s =
      SelectPatches(errors, {.choice = choice, .most = most, .layers = std::move(layers)}, MadeUp);
  EXPECT_TRUE(s.ok()) << s.status();
  return *std::move(s);
}

TEST(SelectPatchesTest, GreedyStopsWhenNothingHelps) {
  const PatchSelection s = Selected(PatchChoice::kGreedy);
  EXPECT_EQ(s.base_kl, 1);
  EXPECT_EQ(s.single_kl.size(), 5u);
  EXPECT_THAT(s.order, ElementsAre(1, 0));  // 4 did not help alone, so it is not tried again
  EXPECT_THAT(s.layers(), ElementsAre(1, 0));
  EXPECT_DOUBLE_EQ(s.curve.back(), 0.6);
  EXPECT_THAT(Selected(PatchChoice::kGreedy, 1).layers(), ElementsAre(1));
  EXPECT_THAT(Selected(PatchChoice::kGreedy, 0).layers(), IsEmpty());
}

TEST(SelectPatchesTest, OrdersByThemselvesKeepTheirBestBeginning) {
  const PatchSelection single = Selected(PatchChoice::kSingle, 4);
  EXPECT_THAT(single.order, ElementsAre(1, 3, 0, 4));
  EXPECT_EQ(single.count, 4u);
  const PatchSelection error = Selected(PatchChoice::kError, 3);
  EXPECT_THAT(error.order, ElementsAre(2, 3, 4));
  EXPECT_EQ(error.curve.size(), 3u);
  EXPECT_THAT(error.layers(), ElementsAre(2, 3));  // .95 after 1.2
  EXPECT_THAT(Selected(PatchChoice::kError, 1).layers(), IsEmpty());
}

TEST(SelectPatchesTest, AListIsTakenAsItIs) {
  const PatchSelection s = Selected(PatchChoice::kList, 8, {2, 4});
  EXPECT_THAT(s.layers(), ElementsAre(2, 4));
  EXPECT_GT(s.curve.back(), s.base_kl);
  const std::vector<double> errors(5);
  const auto refused = [&](std::vector<std::size_t> layers) {
    const auto r =
        SelectPatches(errors, {.choice = PatchChoice::kList, .layers = std::move(layers)}, MadeUp);
    EXPECT_EQ(r.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(r.status().message());
  };
  EXPECT_THAT(refused({5}), HasSubstr("layer 5; the models have 5 layers"));
  EXPECT_THAT(refused({1, 1}), HasSubstr("layer 1 twice"));
  EXPECT_THAT(refused({}), HasSubstr("no layers"));
}

// A consumer that differs in the K/V map of its last layer alone, from the same inputs.
class PatchTest : public ::testing::Test {
 protected:
  PatchTest() : tiny_(0), adapters_(tiny_.pair().producer.model) {
    const ModelConfig& c = tiny_.model().config();
    LoraAdapter adapter = RandomAdapter(c, 1.0f, 4);
    for (std::size_t l = 0; l < adapter.layers.size(); ++l) {
      for (const char* module : {"q_proj", "o_proj"}) adapter.layers[l].erase(module);
      if (l + 1 < adapter.layers.size()) adapter.layers[l].clear();
    }
    consumer_ = {.model = tiny_.pair().producer.model,
                 .adapters = &adapters_,
                 .adapter = *adapters_.Add(adapter, tiny_.executor())};
    set_ = RandomDocuments(40, 128, 3);
    for (const Document& d : set_.documents) documents_.push_back(&d);
    auto statistics = GatherStatistics(
        tiny_.pair().producer, {consumer_}, documents_,
        {.inputs = true, .sample_rows = 1024, .max_tokens = 128, .progress = nullptr},
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
    const Candidate candidate =
        MakeCandidates(raw, statistics_, metrics_, 96 * 8, nullptr, tiny_.executor()).front();
    base_.layers = candidate.layers;
    errors_ = candidate.relative_error;
    patched_ = PatchLayers(consumer_, statistics_, metrics_.consumers[0], base_, 0.1, nullptr,
                           tiny_.executor());
  }

  absl::StatusOr<std::vector<double>> Judge(const std::vector<std::vector<std::size_t>>& sets) {
    std::vector<PrefixWay> ways;
    for (const auto& layers : sets) {
      ways.push_back(
          *CodedWay("", WithPatches(base_, patched_, layers), consumer_, 96, tiny_.executor()));
    }
    const auto scores = ScoreHeldOut(
        tiny_.pair().producer, consumer_, absl::MakeConstSpan(documents_).first(8), ways,
        {.prefix = 96, .continuation = 32, .progress = nullptr}, tiny_.executor());
    if (!scores.ok()) return scores.status();
    std::vector<double> kl;
    for (const WayScore& way : scores->ways) kl.push_back(way.kl);
    return kl;
  }

  TinyPair tiny_;
  AdapterSet adapters_;
  ProbedModel consumer_;
  DocumentSet set_;
  std::vector<const Document*> documents_;
  CalibrationStatistics statistics_;
  TargetMetrics metrics_;
  Codec base_;
  std::vector<double> errors_;
  std::vector<CodecLayer> patched_;
};

TEST_F(PatchTest, GreedyFindsTheLayerWhoseProjectionChanged) {
  const auto s = SelectPatches(errors_, {.choice = PatchChoice::kGreedy},
                               [this](const auto& sets) { return Judge(sets); });
  ASSERT_TRUE(s.ok()) << s.status();
  ASSERT_FALSE(s->order.empty());
  EXPECT_EQ(s->order[0], 2u);
  EXPECT_LT(s->curve[0], s->base_kl / 4);
  // The other layers' K/V are the producer's own: they gain next to nothing.
  EXPECT_GT(s->single_kl[0], 0.8 * s->base_kl);
  EXPECT_GT(s->single_kl[1], 0.8 * s->base_kl);
}

TEST_F(PatchTest, APatchedLayerTakesNoMoreThanItReplaces) {
  for (std::size_t l = 0; l < 3; ++l) {
    SCOPED_TRACE(l);
    const auto bits = [](const CodecLayer& layer) {
      return std::accumulate(layer.bits.begin(), layer.bits.end(), 0);
    };
    EXPECT_EQ(patched_[l].kind, LayerKind::kPatch);
    EXPECT_LE(bits(patched_[l]), bits(base_.layers[l]));
    EXPECT_GE(bits(patched_[l]), bits(base_.layers[l]) - 1);
    const Codec codec = WithPatches(base_, patched_, {l});
    EXPECT_TRUE(CheckCodec(codec).ok());
    EXPECT_NE(codec.Digest(), base_.Digest());
  }
}

// e^T W_H e is what the projection of gamma e costs under W, but for the floor.
TEST_F(PatchTest, InputMetricIsTheProjectionsCost) {
  const Model::Weights& w = tiny_.model().weights();
  const LayerWeights& l = w.layers[1];
  const std::int64_t d = w.config.hidden, q = w.q_dim(), kv = 2 * w.kv_dim();
  Matrix metric(kv, kv);
  for (std::int64_t i = 0; i < kv; ++i) metric.at(i, i) = 0.5 + static_cast<double>(i);
  const Matrix got = InputMetric(consumer_, 1, metric, statistics_.ConsumerInput(1));
  std::vector<double> e(static_cast<std::size_t>(d));
  for (std::int64_t i = 0; i < d; ++i) e[i] = std::sin(static_cast<double>(i));
  double want = 0, cost = 0, trace = 0;
  std::vector<float> row(static_cast<std::size_t>(d));
  for (std::int64_t i = 0; i < kv; ++i) {
    l.qkv.UnpackRow(q + i, row.data());
    double y = 0;
    for (std::int64_t j = 0; j < d; ++j) y += row[j] * l.input_norm[j] * e[j];
    want += metric.at(i, i) * y * y;
  }
  for (std::int64_t i = 0; i < d; ++i) {
    trace += got.at(i, i);
    for (std::int64_t j = 0; j < d; ++j) cost += e[i] * got.at(i, j) * e[j];
  }
  const double length = std::inner_product(e.begin(), e.end(), e.begin(), 0.0);
  EXPECT_NEAR(cost, want + 1e-3 / 1.001 * trace / static_cast<double>(d) * length, 1e-6 * want);
}

}  // namespace
}  // namespace baton
