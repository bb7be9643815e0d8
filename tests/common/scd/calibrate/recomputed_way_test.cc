#include "common/scd/calibrate/recomputed_way.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "common/scd/calibrate/held_out.h"
#include "gtest/gtest.h"
#include "tests/common/scd/calibrate/tiny_pair.h"

namespace baton {
namespace {

class RecomputedWayTest : public testing::Test {
 protected:
  PrefixWay Recomputed(LayerRun run, StreamSource source) {
    auto way = RecomputedWay(UncodedWay("uncoded", consumer_, tiny_.executor()), run,
                             std::move(source), consumer_, 96, tiny_.executor());
    EXPECT_TRUE(way.ok()) << way.status();
    return *std::move(way);
  }

  std::vector<double> Kl(const std::vector<PrefixWay>& ways) {
    std::vector<const Document*> documents;
    for (const Document& d : set_.documents) documents.push_back(&d);
    const auto scores =
        ScoreHeldOut(tiny_.pair().producer, consumer_, documents, ways,
                     {.prefix = 96, .continuation = 32, .progress = nullptr}, tiny_.executor());
    EXPECT_TRUE(scores.ok()) << scores.status();
    std::vector<double> kl;
    for (const WayScore& way : scores->ways) kl.push_back(way.kl);
    return kl;
  }

  TinyPair tiny_{0.5f};
  const ProbedModel& consumer_ = tiny_.pair().consumer;
  DocumentSet set_ = RandomDocuments(3, 128, 4);
};

// From the consumer's own stream the K/V of the run are those of its own prefill; those of other
// layers come the other way.
TEST_F(RecomputedWayTest, TheConsumersStreamMakesItsOwnKv) {
  const std::vector<std::int32_t>& tokens = set_.documents[0].tokens;
  const std::int64_t rows = 80;
  const auto started = [&](const ProbedModel& of) {
    auto probe = ModelProbe::Create(of, 96, tiny_.executor());
    EXPECT_TRUE(probe.ok());
    (*probe)->Start({tokens.data(), rows});
    return *std::move(probe);
  };
  const StreamSource source = [&](const ProducerRows& given, float* stream) {
    EXPECT_EQ(given.layer, 1);
    const auto probe = started(consumer_);
    probe->RunLayer(0);
    const LayerStates& states = probe->RunLayer(1);
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < 64; ++i) {
        stream[r * 64 + i] = states.hidden[r * 64 + i] * states.rms[r];
      }
    }
  };
  const PrefixWay way = Recomputed({1, 3}, source);
  const PrefixWay uncoded = UncodedWay("", consumer_, tiny_.executor());
  const auto producer = started(tiny_.pair().producer), consumer = started(consumer_);
  const auto brought = [&](const PrefixWay& by, int layer, const LayerStates& states) {
    std::vector<float> kv(static_cast<std::size_t>(rows * 64));
    by.decode({.layer = layer,
               .rows = rows,
               .tokens = tokens.data(),
               .hidden = states.hidden.data(),
               .rms = states.rms.data(),
               .kv = states.kv.data()},
              kv.data());
    return kv;
  };
  for (int layer = 0; layer < 3; ++layer) {
    SCOPED_TRACE(layer);
    const LayerStates& theirs = producer->RunLayer(layer);
    const LayerStates& own = consumer->RunLayer(layer);
    const std::vector<float> got = brought(way, layer, theirs);
    const std::vector<float> want = brought(uncoded, layer, layer == 0 ? theirs : own);
    for (std::size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-4) << i;
  }
}

TEST_F(RecomputedWayTest, NoRunIsTheOtherWay) {
  const std::vector<double> kl =
      Kl({Recomputed({}, ProducerStream(64)), UncodedWay("", consumer_, tiny_.executor()),
          Recomputed({0, 3}, ProducerStream(64))});
  EXPECT_EQ(kl[0], kl[1]);
  EXPECT_GT(kl[1], 1e-3);
  EXPECT_LT(kl[2], 1e-6);  // both have the same embeddings
}

TEST_F(RecomputedWayTest, TheFirstRowsAreTheConsumersOwn) {
  const StreamSource right = ProducerStream(64);
  const StreamSource without = [&](const ProducerRows& given, float* stream) {
    right(given, stream);
    std::fill_n(stream, kSinkTokens * 64, std::numeric_limits<float>::quiet_NaN());
  };
  const std::vector<double> kl = Kl({Recomputed({1, 3}, right), Recomputed({1, 3}, without)});
  EXPECT_EQ(kl[0], kl[1]);
}

TEST_F(RecomputedWayTest, AWayWithASeamMayShareIt) {
  const PrefixWay shared = Recomputed({1, 3}, ProducerStream(64));
  const PrefixWay alone = Recomputed({1, 3}, ProducerStream(64));
  const std::vector<double> kl = Kl(
      {shared, WithSeam(shared, 16), alone, WithSeam(Recomputed({1, 3}, ProducerStream(64)), 16)});
  EXPECT_EQ(kl[0], kl[2]);
  EXPECT_EQ(kl[1], kl[3]);
}

}  // namespace
}  // namespace baton
