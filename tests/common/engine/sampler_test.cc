#include "common/engine/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <vector>

#include "common/engine/counter_random.h"
#include "gtest/gtest.h"
#include "tests/support/sanitized.h"

namespace baton {
namespace {

// Known answers published with Random123 (kat_vectors, philox 4x32 10).
TEST(CounterRandom, PhiloxKnownAnswers) {
  EXPECT_EQ(Philox4x32({0, 0, 0, 0}, {0, 0}),
            (std::array<std::uint32_t, 4>{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(Philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}),
            (std::array<std::uint32_t, 4>{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(Philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
            (std::array<std::uint32_t, 4>{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(CounterRandom, UniformHasTheRightMoments) {
  double sum = 0, squares = 0;
  constexpr int kN = 100000;
  for (int i = 0; i < kN; ++i) {
    const double u = UniformAt(42, static_cast<std::uint64_t>(i));
    ASSERT_GE(u, 0);
    ASSERT_LT(u, 1);
    sum += u;
    squares += u * u;
  }
  EXPECT_NEAR(sum / kN, 0.5, 0.005);
  EXPECT_NEAR(squares / kN, 1.0 / 3, 0.005);
}

struct Draws {
  std::map<std::int32_t, int> counts;
  double Share(std::int32_t token) const {
    int all = 0;
    for (const auto& [id, n] : counts) all += n;
    const auto it = counts.find(token);
    return it == counts.end() ? 0 : static_cast<double>(it->second) / all;
  }
};

std::int32_t Sample(const std::vector<float>& logits, const SamplingParams& params,
                    std::uint64_t index = 0, const TokenHistory* history = nullptr,
                    std::vector<std::int32_t> forbidden = {}) {
  SamplerScratch scratch;
  SampleRequest request;
  request.logits = logits;
  request.params = &params;
  request.seed = params.seed.value_or(7);
  request.index = index;
  request.history = history;
  request.forbidden = forbidden;
  const auto result = SampleToken(request, scratch);
  EXPECT_TRUE(result.ok()) << result.status();
  return result.ok() ? result->token : -1;
}

Draws Many(const std::vector<float>& logits, const SamplingParams& params, int n = 20000) {
  Draws draws;
  for (int i = 0; i < n; ++i) ++draws.counts[Sample(logits, params, static_cast<std::uint64_t>(i))];
  return draws;
}

std::vector<double> Softmax(const std::vector<float>& logits, double temperature) {
  std::vector<double> p(logits.size());
  double sum = 0;
  for (std::size_t i = 0; i < p.size(); ++i) sum += p[i] = std::exp(logits[i] / temperature);
  for (double& x : p) x /= sum;
  return p;
}

const std::vector<float> kLogits = {1.0f, 3.0f, -2.0f, 2.0f, 2.5f, 0.0f};

TEST(Sampler, GreedyIgnoresTopPAndTopK) {
  for (const int k : {-1, 0, 1, 1000000}) {
    for (const double p : {0.1, 1.0}) {
      SamplingParams params;
      params.temperature = 0;
      params.top_k = k;
      params.top_p = p;
      EXPECT_EQ(Sample(kLogits, params), 1);
    }
  }
}

TEST(Sampler, GreedyTiesGoToTheLowestId) {
  SamplingParams params;
  params.temperature = 0;
  EXPECT_EQ(Sample({0.f, 5.f, 5.f, 5.f}, params), 1);
  params.logit_bias = {{3, 0.f}};  // the slower path
  EXPECT_EQ(Sample({0.f, 5.f, 5.f, 5.f}, params), 1);
}

TEST(Sampler, FrequenciesFollowTheTemperature) {
  for (const double temperature : {0.5, 1.0, 2.0}) {
    SamplingParams params;
    params.temperature = temperature;
    const Draws draws = Many(kLogits, params);
    const std::vector<double> p = Softmax(kLogits, temperature);
    for (std::size_t i = 0; i < p.size(); ++i) {
      // Five standard deviations.
      EXPECT_NEAR(draws.Share(static_cast<std::int32_t>(i)), p[i],
                  5 * std::sqrt(p[i] * (1 - p[i]) / 20000) + 1e-4);
    }
  }
}

TEST(Sampler, TopKKeepsTheKMostLikely) {
  SamplingParams params;
  params.top_k = 2;
  const Draws draws = Many(kLogits, params);
  EXPECT_EQ(draws.counts.size(), 2u);
  EXPECT_NEAR(draws.Share(1), std::exp(3.0) / (std::exp(3.0) + std::exp(2.5)), 0.02);
  params.top_k = 1;
  EXPECT_EQ(Many(kLogits, params, 100).counts.size(), 1u);
}

TEST(Sampler, TopPKeepsTheSmallestHeadThatReachesIt) {
  const std::vector<double> p = Softmax(kLogits, 1);
  SamplingParams params;
  params.top_p = p[1] + p[4] * 0.5;  // one token is not enough, two are
  const Draws draws = Many(kLogits, params);
  EXPECT_EQ(draws.counts.size(), 2u);
  EXPECT_TRUE(draws.counts.contains(1) && draws.counts.contains(4));
  params.top_p = 1e-9;
  EXPECT_EQ(Many(kLogits, params, 100).counts.size(), 1u);
}

// Longer than the head that is sorted first.
TEST(Sampler, TopPOverALargeFlatVocabulary) {
  std::vector<float> logits(5000, 0.f);
  for (std::size_t i = 0; i < logits.size(); ++i) logits[i] = static_cast<float>(i) * 1e-6f;
  SamplingParams params;
  params.top_p = 0.5;
  std::set<std::int32_t> seen;
  const std::uint64_t draws = BATON_SANITIZED ? 300 : 3000;  // a sort each
  for (std::uint64_t i = 0; i < draws; ++i) seen.insert(Sample(logits, params, i));
  EXPECT_GE(*seen.begin(), 2490);  // the less likely half never comes
  EXPECT_GT(seen.size(), draws / 3);
}

TEST(Sampler, MinPIsRelativeToTheMostLikely) {
  SamplingParams params;
  params.min_p = std::exp(-0.7);  // keeps logits within 0.7 of the best
  EXPECT_EQ(Many(kLogits, params).counts.size(), 2u);
  params.min_p = 1;
  EXPECT_EQ(Many(kLogits, params, 100).counts.size(), 1u);
}

TEST(Sampler, PenaltiesFollowTheirDefinitions) {
  TokenHistory history;
  history.AddPrompt(1);
  history.AddOutput(4);
  history.AddOutput(4);
  SamplingParams params;
  params.temperature = 0;
  // Repetition sees the prompt too: 3 becomes 1.875 and 2.5 becomes 1.56, so the unseen 2.0 wins.
  params.repetition_penalty = 1.6;
  EXPECT_EQ(Sample(kLogits, params, 0, &history), 3);
  // Presence and frequency see the output only: token 1 keeps its 3.0.
  params.repetition_penalty = 1;
  params.presence_penalty = 2;
  EXPECT_EQ(Sample(kLogits, params, 0, &history), 1);
  params.presence_penalty = -0.3;  // 2.5 + 0.3 < 3
  EXPECT_EQ(Sample(kLogits, params, 0, &history), 1);
  params.frequency_penalty = -0.15;  // 2.5 + 0.3 + 2 * 0.15 > 3
  EXPECT_EQ(Sample(kLogits, params, 0, &history), 4);
}

TEST(Sampler, RepetitionPenaltyLowersNegativeLogits) {
  TokenHistory history;
  history.AddPrompt(0);
  SamplingParams params;
  params.temperature = 0;
  params.repetition_penalty = 2;
  EXPECT_EQ(Sample({-1.f, -1.5f}, params, 0, &history), 1);  // -2 < -1.5
}

TEST(Sampler, BiasAndForbidden) {
  SamplingParams params;
  params.temperature = 0;
  params.logit_bias = {{1, -100.f}};
  EXPECT_EQ(Sample(kLogits, params), 4);
  params.logit_bias = {{2, 100.f}};
  EXPECT_EQ(Sample(kLogits, params), 2);
  EXPECT_EQ(Sample(kLogits, params, 0, nullptr, {2, 1}), 4);
  params.temperature = 1;
  params.logit_bias = {{1, -100.f}};
  EXPECT_FALSE(Many(kLogits, params, 5000).counts.contains(1));
}

TEST(Sampler, TheSameSeedAndIndexGiveTheSameToken) {
  SamplingParams params;
  params.seed = 42;
  std::vector<std::int32_t> a, b;
  for (std::uint64_t i = 0; i < 100; ++i) a.push_back(Sample(kLogits, params, i));
  for (std::uint64_t i = 0; i < 100; ++i) b.push_back(Sample(kLogits, params, i));
  EXPECT_EQ(a, b);
  params.seed = 43;
  std::vector<std::int32_t> c;
  for (std::uint64_t i = 0; i < 100; ++i) c.push_back(Sample(kLogits, params, i));
  EXPECT_NE(a, c);
}

TEST(Sampler, LogprobsAreOfTheRawLogits) {
  SamplingParams params;
  params.temperature = 0;
  params.logprobs = true;
  params.top_logprobs = 3;
  params.logit_bias = {{2, 100.f}};  // changes the choice, not the reported distribution
  SamplerScratch scratch;
  SampleRequest request;
  request.logits = kLogits;
  request.params = &params;
  const auto result = SampleToken(request, scratch);
  ASSERT_TRUE(result.ok());
  const std::vector<double> p = Softmax(kLogits, 1);
  ASSERT_EQ(result->logprobs.size(), 4u);
  const std::vector<std::int32_t> ids = {2, 1, 4, 3};
  for (std::size_t i = 0; i < ids.size(); ++i) {
    EXPECT_EQ(result->logprobs[i].token, ids[i]);
    EXPECT_NEAR(result->logprobs[i].logprob, std::log(p[static_cast<std::size_t>(ids[i])]), 1e-5);
  }
}

TEST(Sampler, BadLogitsAreAnError) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const double temperature : {0.0, 1.0}) {
      std::vector<float> logits = kLogits;
      logits[3] = bad;
      SamplingParams params;
      params.temperature = temperature;
      SamplerScratch scratch;
      SampleRequest request;
      request.logits = logits;
      request.params = &params;
      EXPECT_EQ(SampleToken(request, scratch).status().code(), absl::StatusCode::kInternal);
    }
  }
  SamplingParams params;
  SamplerScratch scratch;
  const std::vector<std::int32_t> all = {0, 1, 2, 3, 4, 5};
  SampleRequest request;
  request.logits = kLogits;
  request.params = &params;
  request.forbidden = all;
  EXPECT_EQ(SampleToken(request, scratch).status().code(), absl::StatusCode::kInternal);
  const std::vector<float> none(6, -std::numeric_limits<float>::infinity());
  request.forbidden = {};
  request.logits = none;
  for (params.temperature = 0; params.temperature < 2; ++params.temperature) {
    EXPECT_EQ(SampleToken(request, scratch).status().code(), absl::StatusCode::kInternal);
  }
}

TEST(Sampler, MinusInfinityIsNeverChosen) {
  const float never = -std::numeric_limits<float>::infinity();
  SamplingParams params;
  params.temperature = 50;
  const Draws draws = Many({never, 0.f, never, 1.f}, params, 5000);
  EXPECT_EQ(draws.counts.size(), 2u);
  EXPECT_TRUE(draws.counts.contains(1) && draws.counts.contains(3));
}

}  // namespace
}  // namespace baton
