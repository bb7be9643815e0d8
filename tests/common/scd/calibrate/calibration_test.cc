#include "common/scd/calibrate/calibration.h"

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <string>
#include <vector>

#include "common/scd/decoder.h"
#include "common/scd/encoder.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/common/scd/calibrate/tiny_pair.h"

namespace baton {
namespace {

using testing::HasSubstr;

CalibrationOptions Options(double bytes) {
  CalibrationOptions o;
  o.bytes_per_token = bytes;
  o.metric = Metric::kHeuristic;
  o.ridges = {0.1};
  o.epochs = 0;
  o.max_tokens = 3000;
  o.prefix = 96;
  o.continuation = 32;
  o.held_out = 4;
  o.sample_rows = 1024;
  o.seams = {};
  return o;
}

CalibrationResult Made(TinyPair& tiny, const CalibrationOptions& options) {
  auto result = Calibrate(tiny.pair(), RandomDocuments(40, DocumentTokens(options), 11), options,
                          tiny.executor());
  if (!result.ok()) throw std::runtime_error(result.status().ToString());
  return *std::move(result);
}

const WayScore& Way(const CalibrationResult& r, const std::string& name) {
  return *std::find_if(r.scores.ways.begin(), r.scores.ways.end(),
                       [&](const WayScore& w) { return w.name == name; });
}

// Three layers of 2 * 2 * 16 values: raw fp16 is 384 bytes a token.
TEST(CalibrationTest, CodecKeepsTheBudgetAndIsTheBestCandidate) {
  TinyPair tiny(0.5f);
  const CalibrationResult r = Made(tiny, Options(48));
  EXPECT_TRUE(CheckCodec(r.codec).ok());
  EXPECT_LE(r.codec.bytes_per_token(), 48);
  EXPECT_GT(r.codec.bytes_per_token(), 47);
  EXPECT_EQ(r.codec.identity.producer_weights, "base");
  EXPECT_EQ(r.codec.identity.consumer_weights, "tuned");
  EXPECT_EQ(r.codec.identity.tokenizer, "bytes");
  EXPECT_EQ(r.codec.identity.source, CodeSource::kHidden);
  ASSERT_EQ(r.scores.ways.size(), 3U);
  EXPECT_LE(Way(r, r.chosen).kl, std::min(Way(r, "raw").kl, Way(r, "closed").kl));

  const auto report = nlohmann::json::parse(r.codec.report);
  EXPECT_EQ(report["chosen"], r.chosen);
  EXPECT_EQ(report["candidates"].size(), 3U);
  EXPECT_EQ(report["candidates"][0]["name"], "uncoded");
  EXPECT_EQ(report["candidates"][0]["bytes_per_token"], 384);
  EXPECT_EQ(report["data"]["files"][0]["path"], "random.txt");
  ASSERT_EQ(report["layers"].size(), 3U);
  for (std::size_t l = 0; l < 3; ++l) {
    EXPECT_EQ(report["layers"][l]["rank"], r.codec.layers[l].rank());
    EXPECT_GT(report["layers"][l]["relative_error"], 0);
    EXPECT_LT(report["layers"][l]["relative_error"], 1.5);
  }
}

// What an adapter of q, k, v and o does to the first layer's K/V is a linear map of the producer's
// states, and nearly so above: aligned codes must beat the base's own K/V, coded or not.
TEST(CalibrationTest, AlignmentWinsWhereTheConsumersKvIsAMapOfTheStates) {
  TinyPair tiny(1.0f);
  CalibrationOptions options = Options(192);
  options.ridges = {0.1, 0.001};
  const CalibrationResult r = Made(tiny, options);
  ASSERT_EQ(r.scores.ways.size(), 4U);
  EXPECT_EQ(r.chosen, "closed@0.001");
  EXPECT_LT(Way(r, "closed@0.001").kl, Way(r, "closed").kl);
  EXPECT_LT(Way(r, "closed").kl, Way(r, "uncoded").kl);
}

TEST(CalibrationTest, SeedDecidesEverything) {
  TinyPair tiny(0.5f);
  CalibrationOptions options = Options(32);
  const CalibrationResult a = Made(tiny, options);
  const CalibrationResult b = Made(tiny, options);
  EXPECT_EQ(a.codec.Digest(), b.codec.Digest());
  EXPECT_EQ(a.codec.report, b.codec.report);
  options.seed = 5;
  EXPECT_NE(Made(tiny, options).codec.Digest(), a.codec.Digest());
}

TEST(CalibrationTest, EqualModelsLoseLessWithMoreBytes) {
  TinyPair tiny(0);
  double last = 1e9;
  for (const double bytes : {12.0, 48.0, 190.0}) {
    const CalibrationResult r = Made(tiny, Options(bytes));
    EXPECT_NEAR(Way(r, "uncoded").kl, 0, 1e-9);
    const double kl = Way(r, "raw").kl;
    EXPECT_LT(kl, last / 2) << bytes;
    last = kl;
  }
}

TEST(CalibrationTest, EverySourceAndMetricMakesACodec) {
  TinyPair tiny(0.5f);
  for (const CodeSource source : {CodeSource::kHidden, CodeSource::kKv}) {
    for (const Metric metric : {Metric::kIdentity, Metric::kHeuristic, Metric::kFisher}) {
      CalibrationOptions options = Options(48);
      options.source = source;
      options.metric = metric;
      const CalibrationResult r = Made(tiny, options);
      EXPECT_EQ(r.codec.identity.source, source);
      EXPECT_LE(r.codec.bytes_per_token(), 48);
      EXPECT_LT(Way(r, "raw").kl, 1);
    }
  }
}

TEST(CalibrationTest, TrainingAddsACandidateOfRawsCodes) {
  TinyPair tiny(0.5f);
  CalibrationOptions options = Options(48);
  options.metric = Metric::kFisher;
  options.epochs = 2;
  options.train_documents = 12;
  options.train_rank = 8;
  options.train_from = TrainFrom::kRaw;
  const CalibrationResult r = Made(tiny, options);
  ASSERT_EQ(r.scores.ways.size(), 4U);
  EXPECT_EQ(r.scores.ways[3].name, "trained");
  EXPECT_EQ(r.bytes_per_token[3], r.bytes_per_token[1]);
  EXPECT_LT(Way(r, "trained").kl, Way(r, "raw").kl);
  const auto report = nlohmann::json::parse(r.codec.report);
  EXPECT_EQ(report["candidates"][3]["trained_from"], "raw");
}

TEST(CalibrationTest, TrainingStartsFromTheBestCandidate) {
  TinyPair tiny(1.0f);
  CalibrationOptions options = Options(192);
  options.epochs = 1;
  options.train_documents = 12;
  options.train_rank = 8;
  const CalibrationResult r = Made(tiny, options);
  const auto report = nlohmann::json::parse(r.codec.report);
  EXPECT_LT(Way(r, "closed").kl, Way(r, "raw").kl);
  EXPECT_EQ(report["candidates"][3]["trained_from"], "closed");
}

TEST(CalibrationTest, SeparateCodesKeepTheirRanks) {
  TinyPair tiny(0.5f);
  CalibrationOptions options = Options(96);
  options.separate = SeparateRanks{.keys = 2, .values = 5};
  options.component_bits = 8;
  const CalibrationResult r = Made(tiny, options);
  ASSERT_EQ(r.scores.ways.size(), 4U);
  EXPECT_EQ(r.scores.ways[3].name, "separate");
  EXPECT_EQ(r.bytes_per_token[3], 3 * (2 + 5));  // everything fits
  EXPECT_EQ(r.bytes_per_token[1], 96);
  for (const CodecLayer& layer : r.codec.layers) {
    for (const std::uint8_t bits : layer.bits) EXPECT_EQ(bits, 8);
  }
  options.bytes_per_token = 2.9;
  EXPECT_EQ(
      Calibrate(tiny.pair(), RandomDocuments(8, 100, 1), options, tiny.executor()).status().code(),
      absl::StatusCode::kInvalidArgument);
}

TEST(CalibrationTest, OtherFactorisationsAreCandidatesToo) {
  TinyPair tiny(0.5f);
  CalibrationOptions options = Options(48);
  options.factorisations = {Factorisation::kStacked, Factorisation::kPca};
  const CalibrationResult r = Made(tiny, options);
  ASSERT_EQ(r.scores.ways.size(), 5U);
  EXPECT_LE(Way(r, r.chosen).kl, std::min(Way(r, "stacked").kl, Way(r, "pca").kl));
  const auto report = nlohmann::json::parse(r.codec.report);
  EXPECT_EQ(report["candidates"][3]["factorisation"], "stacked");
  EXPECT_EQ(report["candidates"][4]["factorisation"], "pca");
}

TEST(CalibrationTest, CandidatesAreJudgedWithSeamsToo) {
  TinyPair tiny(0.5f);
  CalibrationOptions options = Options(48);
  options.seams = {16, 64};
  const CalibrationResult r = Made(tiny, options);
  ASSERT_EQ(r.scores.ways.size(), 7U);
  ASSERT_EQ(r.bytes_per_token.size(), 7U);
  EXPECT_LT(Way(r, "raw+seam64").kl, Way(r, "raw+seam16").kl);
  EXPECT_LT(Way(r, "raw+seam16").kl, Way(r, "raw").kl);
  const auto report = nlohmann::json::parse(r.codec.report);
  EXPECT_EQ(report["candidates"].size(), 3U);
  ASSERT_EQ(report["seams"].size(), 4U);
  EXPECT_EQ(report["seams"][3]["name"], "closed+seam64");
  EXPECT_EQ(report["seams"][3]["kl"], r.scores.ways[6].kl);
}

TEST(CalibrationTest, PatchedLayersAreACandidateOfEqualBytes) {
  TinyPair tiny(0.5f);
  CalibrationOptions options = Options(48);
  options.patch = {.choice = PatchChoice::kList, .layers = {2, 0}};
  const CalibrationResult r = Made(tiny, options);
  ASSERT_EQ(r.scores.ways.size(), 4U);
  EXPECT_EQ(r.scores.ways[3].name, "patched");
  EXPECT_LE(r.bytes_per_token[3], 48);
  EXPECT_GT(r.bytes_per_token[3], 46);
  auto report = nlohmann::json::parse(r.codec.report);
  EXPECT_EQ(report["patch"]["choice"], "list");
  EXPECT_EQ(report["patch"]["layers"], nlohmann::json({2, 0}));
  EXPECT_EQ(report["patch"]["curve"].size(), 2U);

  options.patch = {.choice = PatchChoice::kGreedy, .most = 2};
  options.patch_epochs = 1;
  const CalibrationResult greedy = Made(tiny, options);
  report = nlohmann::json::parse(greedy.codec.report);
  const auto& patch = report["patch"];
  EXPECT_EQ(patch["single_kl"].size(), 3U);
  EXPECT_LE(patch["layers"].size(), 2U);
  // Every layer that is added improves on what it joins.
  double last = patch["base_kl"];
  for (const double kl : patch["curve"]) {
    EXPECT_LT(kl, last);
    last = kl;
  }
  EXPECT_EQ(greedy.scores.ways.size(), patch["layers"].empty() ? 3U : 5U);
}

TEST(CalibrationTest, RunsAreCandidatesWithinTheBudgetAndTheBestOfThemIsKept) {
  TinyPair tiny(0.5f);
  CalibrationOptions options = Options(96);
  options.ridges = {0.1, 0.001};
  options.runs = {{1, 3}, {0, 3}, {2, 3}};
  options.seams = {16};
  const CalibrationResult r = Made(tiny, options);
  ASSERT_EQ(r.scores.ways.size(), 1U + 2 * 9);  // raw, two of closed, six with a run
  EXPECT_EQ(r.scores.ways[4].name, "run:1-2");
  EXPECT_EQ(r.scores.ways[5].name, "run:1-2@0.001");
  for (const double bytes : r.bytes_per_token) EXPECT_LE(bytes, bytes == 384 ? 384 : 96);
  EXPECT_TRUE(r.chosen == "run:0-2" || r.chosen == "run:0-2@0.001") << r.chosen;
  EXPECT_EQ(r.codec.run(), (LayerRun{0, 3}));
  EXPECT_LT(Way(r, r.chosen).kl, Way(r, "uncoded").kl / 10);
  EXPECT_LT(Way(r, "run:1-2").kl, Way(r, "uncoded").kl);
  const auto report = nlohmann::json::parse(r.codec.report);
  EXPECT_EQ(report["candidates"][4]["run"]["layers"], "1-2");
  EXPECT_EQ(report["options"]["runs"], nlohmann::json({"1-2", "0-2", "2-2"}));
  EXPECT_EQ(report["layers"][0]["kind"], "stream");
  EXPECT_EQ(report["layers"][2]["kind"], "native");
  EXPECT_EQ(report["layers"][2]["rank"], 0);

  // A run is asked for: one that does not win is kept all the same, with the winner's other layers.
  options.runs = {{2, 3}};
  options.bytes_per_token = 12;
  const CalibrationResult kept = Made(tiny, options);
  EXPECT_EQ(kept.codec.run(), (LayerRun{2, 3}));
  const auto why = nlohmann::json::parse(kept.codec.report);
  const std::string base = why["candidates"].back()["run"]["base"];
  EXPECT_TRUE(base == "raw" || base == "closed" || base == "closed@0.001") << base;
}

TEST(CalibrationTest, ARunKeepsATrainedDecoder) {
  TinyPair tiny(1.0f);
  CalibrationOptions options = Options(192);
  options.epochs = 2;
  options.train_documents = 12;
  options.train_rank = 8;
  options.runs = {{2, 3}};
  const CalibrationResult r = Made(tiny, options);
  const auto report = nlohmann::json::parse(r.codec.report);
  EXPECT_EQ(report["candidates"].back()["run"]["base"], "trained");
  EXPECT_EQ(r.chosen, "run:2-2");
}

std::string Failure(TinyPair& tiny, const CalibrationOptions& options, int documents = 8) {
  const auto result =
      Calibrate(tiny.pair(), RandomDocuments(documents, 100, 1), options, tiny.executor());
  EXPECT_EQ(result.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(result.status().message());
}

TEST(CalibrationTest, WhatIsWrongIsNamed) {
  TinyPair tiny(0);
  EXPECT_THAT(Failure(tiny, Options(0)), HasSubstr("bytes_per_token: 0"));
  EXPECT_THAT(Failure(tiny, Options(385)), HasSubstr("bytes_per_token: 385"));
  CalibrationOptions o = Options(48);
  o.prefix = 4000;
  EXPECT_THAT(Failure(tiny, o), HasSubstr("the models' context is 2048"));
  EXPECT_THAT(Failure(tiny, Options(48), 4), HasSubstr("none is left to learn from"));

  o = Options(48);
  o.seams = {96};
  EXPECT_THAT(Failure(tiny, o), HasSubstr("seams: 96"));

  o = Options(48);
  o.patch.choice = PatchChoice::kGreedy;
  o.source = CodeSource::kKv;
  EXPECT_THAT(Failure(tiny, o), HasSubstr("patch: patched layers are coded from source h"));
  o.source = CodeSource::kHidden;
  o.patch = {.choice = PatchChoice::kList, .layers = {3}};
  EXPECT_THAT(Failure(tiny, o), HasSubstr("patch: layer 3; the models have 3 layers"));

  o = Options(48);
  o.runs = {{2, 4}};
  EXPECT_THAT(Failure(tiny, o), HasSubstr("runs: 2-3; the models have 3 layers"));
  o.runs = {{1, 2}, {1, 2}};
  EXPECT_THAT(Failure(tiny, o), HasSubstr("runs: 1-1 twice"));
  o.runs = {{1, 2}};
  o.source = CodeSource::kKv;
  EXPECT_THAT(Failure(tiny, o), HasSubstr("runs: the stream is coded from source h"));

  TinyPair other(0, {.layers = 2});
  CalibrationPair mixed = tiny.pair();
  mixed.consumer = other.pair().consumer;
  const auto result = Calibrate(mixed, RandomDocuments(8, 100, 1), Options(48), tiny.executor());
  EXPECT_THAT(std::string(result.status().message()),
              HasSubstr("layers: 3 at the producer, 2 at the consumer"));
}

std::vector<CalibrationResult> MadeShared(TinyPair& tiny, const CalibrationGroup& group,
                                          const CalibrationOptions& options) {
  auto results = CalibrateShared(group, RandomDocuments(40, DocumentTokens(options), 11), options,
                                 tiny.executor());
  if (!results.ok()) throw std::runtime_error(results.status().ToString());
  return *std::move(results);
}

// What a prefill node makes of a producer's rows with this codec.
std::vector<std::byte> CodesOf(const Codec& codec, Executor& executor) {
  const CodeEncoder encoder(codec, executor);
  std::vector<float> rows(static_cast<std::size_t>(kCodeBlockRows * encoder.width()));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<float>(i * i % 97) / 48 - 1;
  std::vector<std::byte> codes;
  for (std::size_t l = 0; l < codec.layers.size(); ++l) {
    std::vector<std::byte> block(encoder.whole().layers[l].block_bytes);
    encoder.Encode(static_cast<int>(l), rows.data(), encoder.width(), 0, block.data(), executor);
    codes.insert(codes.end(), block.begin(), block.end());
  }
  return codes;
}

void ExpectOneCode(const Codec& a, const Codec& b, Executor& executor) {
  EXPECT_EQ(a.EncoderDigest(), b.EncoderDigest());
  EXPECT_NE(a.Digest(), b.Digest());
  ASSERT_EQ(a.layers.size(), b.layers.size());
  for (std::size_t l = 0; l < a.layers.size(); ++l) {
    EXPECT_EQ(a.layers[l].mean, b.layers[l].mean);
    EXPECT_EQ(a.layers[l].encoder, b.layers[l].encoder);
    EXPECT_EQ(a.layers[l].bits, b.layers[l].bits);
    EXPECT_EQ(a.layers[l].importance, b.layers[l].importance);
    EXPECT_EQ(a.layers[l].levels, b.layers[l].levels);
  }
  EXPECT_EQ(CodesOf(a, executor), CodesOf(b, executor));
  const DecoderRope none{std::vector<float>(static_cast<std::size_t>(b.identity.head_dim / 2)), 1};
  EXPECT_EQ(CodeEncoder(a, executor).digest(), CodeDecoder(b, none, executor).encoder_digest());
}

TEST(SharedCalibrationTest, ConsumersOfAGroupHaveOneCodeWithinTheBudget) {
  TinyPair tiny;
  CalibrationOptions options = Options(192);
  options.ridges = {0.1, 0.001};
  options.factorisations = {Factorisation::kPca};
  const CalibrationGroup group = tiny.Group({1.0f, 0.7f, 1.0f});
  const auto results = MadeShared(tiny, group, options);
  ASSERT_EQ(results.size(), 3U);
  for (std::size_t c = 0; c < results.size(); ++c) {
    SCOPED_TRACE(c);
    const CalibrationResult& r = results[c];
    EXPECT_TRUE(CheckCodec(r.codec).ok());
    EXPECT_EQ(r.codec.identity.consumer_weights, group.consumers[c].weights);
    EXPECT_LE(r.codec.bytes_per_token(), 192);
    EXPECT_GT(r.codec.bytes_per_token(), 191);
    ExpectOneCode(results[0].codec, results[c == 0 ? 1 : c].codec, tiny.executor());
    // As for one consumer, alignment wins.
    EXPECT_EQ(r.chosen, "closed@0.001");
    EXPECT_LT(Way(r, r.chosen).kl, Way(r, "raw").kl);
    EXPECT_LT(Way(r, r.chosen).kl, Way(r, "uncoded").kl);

    const auto shared = nlohmann::json::parse(r.codec.report)["shared"];
    EXPECT_EQ(shared["consumer"], group.consumers[c].name);
    ASSERT_EQ(shared["consumers"].size(), 3U);
    EXPECT_EQ(shared["consumers"][c]["weights"], group.consumers[c].weights);
    EXPECT_EQ(shared["consumers"][c]["chosen"], r.chosen);
    EXPECT_EQ(shared["consumers"][c]["kl"], Way(r, r.chosen).kl);
    EXPECT_EQ(shared["consumers"][c]["uncoded_kl"], Way(r, "uncoded").kl);
    ASSERT_EQ(shared["encoders"].size(), 4U);
    EXPECT_EQ(shared["encoders"][2]["candidates"], nlohmann::json({"closed@0.001"}));
  }
}

TEST(SharedCalibrationTest, OneConsumerHasACodeOfItsOwn) {
  TinyPair tiny(0.5f);
  const CalibrationResult alone = Made(tiny, Options(48));
  CalibrationGroup group = tiny.Group({0.5f});
  group.consumers[0].weights = "tuned";
  const auto results = MadeShared(tiny, group, Options(48));
  ASSERT_EQ(results.size(), 1U);
  EXPECT_EQ(results[0].codec.Digest(), alone.codec.Digest());
  EXPECT_EQ(results[0].codec.report, alone.codec.report);
  EXPECT_FALSE(nlohmann::json::parse(alone.codec.report).contains("shared"));
}

TEST(SharedCalibrationTest, EachConsumerTrainsADecoderOfOneEncoderAndGoesOnAfterAKill) {
  TinyPair tiny;
  TempDir dir;
  CalibrationOptions options = Options(48);
  options.metric = Metric::kFisher;
  options.epochs = 2;
  options.train_documents = 12;
  options.train_rank = 8;
  options.checkpoints = dir.File("part.");
  const CalibrationGroup group = tiny.Group({0.5f, 0.8f});
  const auto results = MadeShared(tiny, group, options);
  ExpectOneCode(results[0].codec, results[1].codec, tiny.executor());
  const auto from = [](const CalibrationResult& r) {
    return nlohmann::json::parse(r.codec.report)["candidates"].back()["trained_from"];
  };
  EXPECT_EQ(from(results[0]), from(results[1]));
  for (const CalibrationResult& r : results) {
    EXPECT_LE(Way(r, "trained").kl, Way(r, from(r)).kl);
  }
  // Each has a file of its own, from which the same comes again.
  const std::vector<std::string> files = CheckpointFiles(group, options);
  for (const char* name : {"part.c0.trained", "part.c1.trained"}) {
    EXPECT_TRUE(std::filesystem::exists(dir.File(name))) << name;
    EXPECT_THAT(files, testing::Contains(dir.File(name)));
  }
  int learned = 0;
  options.progress = [&](std::string_view stage, std::int64_t, std::int64_t) {
    if (stage.starts_with("training")) ++learned;
  };
  const auto again = MadeShared(tiny, group, options);
  EXPECT_EQ(learned, 0);
  for (std::size_t c = 0; c < 2; ++c) {
    EXPECT_EQ(again[c].codec.Digest(), results[c].codec.Digest());
  }
}

std::string SharedFailure(TinyPair& tiny, const CalibrationGroup& group,
                          const CalibrationOptions& options) {
  const auto results = CalibrateShared(group, RandomDocuments(8, 100, 1), options, tiny.executor());
  EXPECT_EQ(results.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(results.status().message());
}

TEST(SharedCalibrationTest, WhatIsWrongIsNamed) {
  TinyPair tiny;
  CalibrationGroup group = tiny.Group({0.5f, 0.5f});
  CalibrationOptions o = Options(48);
  o.patch.choice = PatchChoice::kGreedy;
  EXPECT_THAT(SharedFailure(tiny, group, o), HasSubstr("patch: patched layers have codes of their "
                                                       "own, for one consumer; here are 2"));
  o = Options(48);
  o.factorisations = {Factorisation::kStacked};
  EXPECT_THAT(SharedFailure(tiny, group, o), HasSubstr("stacked is for one consumer"));

  o = Options(48);
  o.runs = {{1, 2}};
  EXPECT_THAT(SharedFailure(tiny, group, o), HasSubstr("for one consumer; here are 2"));

  group.consumers[1].name = "c0";
  EXPECT_THAT(SharedFailure(tiny, group, Options(48)), HasSubstr("two have the name \"c0\""));
  group.consumers[1].name = "a/b";
  EXPECT_THAT(SharedFailure(tiny, group, Options(48)), HasSubstr("\"a/b\" is no name of a file"));
  TinyPair other(0, {.layers = 2});
  group.consumers[1] = {.name = "small", .model = other.pair().consumer, .weights = "w"};
  EXPECT_THAT(SharedFailure(tiny, group, Options(48)),
              HasSubstr("consumer \"small\": layers: 3 at the producer, 2 at the consumer"));
  group.consumers.clear();
  EXPECT_THAT(SharedFailure(tiny, group, Options(48)), HasSubstr("consumers: 0"));
}

}  // namespace
}  // namespace baton
