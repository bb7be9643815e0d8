// Log-probabilities of the prompt: those of a plain forward pass, whatever is cached, chunked or
// pre-empted.
#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "common/model/single_sequence.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/engine/engine_fixture.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

// log-softmax of the logits behind each prompt token but the last, in double: [P-1][vocab].
std::vector<std::vector<double>> PlainForward(const std::vector<std::int32_t>& tokens) {
  const TinyNode& node = TinyModel();
  SerialExecutor executor;
  ForwardPass pass(node.model, nullptr, executor);
  const auto rows = static_cast<std::int32_t>(tokens.size());
  auto sequence = *SingleSequence::Create(node.model->config(), DType::kF32, rows);
  std::vector<std::int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  const SequenceSlice slice{.row_begin = 0, .row_end = rows, .view = &sequence->view()};
  float* hidden = pass.Embed(tokens);
  pass.RunLayers(0, 3, hidden, {.positions = positions, .sequences = {&slice, 1}}, nullptr);
  std::vector<std::vector<double>> result;
  for (std::int32_t row = 0; row + 1 < rows; ++row) {
    const float* logits = pass.Logits(hidden, {&row, 1});
    double sum = 0;
    for (int i = 0; i < 512; ++i) sum += std::exp(static_cast<double>(logits[i]));
    std::vector<double>& logprobs = result.emplace_back(512);
    for (std::size_t i = 0; i < 512; ++i) logprobs[i] = logits[i] - std::log(sum);
  }
  return result;
}

EngineRequest Scored(const std::vector<std::int32_t>& tokens, std::int64_t max_tokens, int top) {
  EngineRequest request = Greedy(tokens, max_tokens);
  request.sampling.logprobs = true;
  request.sampling.top_logprobs = top;
  request.sampling.prompt_logprobs = true;
  return request;
}

class ScoringListener : public RecordingListener {
 public:
  void OnTokens(TokenDelta delta) override {
    EXPECT_LE(delta.prompt_logprobs.size(), 64u);
    if (!delta.prompt_logprobs.empty()) {
      EXPECT_TRUE(ids().empty()) << "a score after the first token";
      EXPECT_TRUE(delta.token_ids.empty() && delta.text.empty());
    }
    {
      MutexLock lock(mu_);
      scores_.insert(scores_.end(), delta.prompt_logprobs.begin(), delta.prompt_logprobs.end());
    }
    RecordingListener::OnTokens(std::move(delta));
  }
  std::vector<std::vector<TokenLogprobEntry>> scores() const {
    MutexLock lock(mu_);
    return scores_;
  }

 private:
  mutable Mutex mu_;
  std::vector<std::vector<TokenLogprobEntry>> scores_;
};

std::shared_ptr<ScoringListener> Start(TestEngine& engine, EngineRequest request) {
  auto listener = std::make_shared<ScoringListener>();
  const auto handle = engine->Submit(std::move(request), listener);
  EXPECT_TRUE(handle.ok()) << handle.status();
  return listener;
}

// The tolerance is that of a float sum of 512 exponentials.
void ExpectPlainScores(const ScoringListener& listener, const std::vector<std::int32_t>& tokens,
                       int top) {
  const auto plain = PlainForward(tokens);
  const auto scores = listener.scores();
  ASSERT_EQ(scores.size(), tokens.size());
  EXPECT_EQ(scores[0].size(), 1u);
  EXPECT_TRUE(std::isnan(scores[0][0].logprob)) << "nothing comes before the first token";
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    EXPECT_EQ(scores[i][0].token_id, tokens[i]);
    EXPECT_EQ(scores[i][0].bytes, TinyModel().tokenizer->TokenBytes(tokens[i]));
    if (i == 0) continue;
    const std::vector<double>& row = plain[i - 1];
    EXPECT_NEAR(scores[i][0].logprob, row[static_cast<std::size_t>(tokens[i])], 1e-5) << i;
    ASSERT_EQ(scores[i].size(), static_cast<std::size_t>(top) + 1);
    std::vector<double> best = row;
    std::partial_sort(best.begin(), best.begin() + top, best.end(), std::greater<>());
    for (int k = 0; k < top; ++k) {
      const auto at = static_cast<std::size_t>(k);
      EXPECT_NEAR(scores[i][at + 1].logprob, best[at], 1e-5) << i;
    }
  }
}

// Case lp-01: P entries without a generated token for max_tokens 0, the same and a token for 1.
TEST(EngineScoring, EveryPromptTokenIsScoredInAnyChunking) {
  for (const std::int32_t step_tokens : {16, 37, 512}) {
    EngineSetup setup;
    setup.options.step_tokens = step_tokens;
    setup.threads = step_tokens == 37 ? 2 : 1;
    TestEngine engine(setup);
    for (const std::size_t n : {1, 2, 16, 17, 64, 65, 130}) {
      const auto prompt = RandomPrompt(n, static_cast<std::uint32_t>(n));
      const auto only = Start(engine, Scored(prompt, 0, 2));
      const FinishInfo info = only->Wait();
      EXPECT_TRUE(info.status.ok()) << info.status;
      EXPECT_EQ(info.reason, FinishReason::kLength);
      EXPECT_EQ(info.completion_tokens, 0);
      EXPECT_EQ(info.prompt_tokens, static_cast<std::int64_t>(n));
      EXPECT_TRUE(only->ids().empty());
      ExpectPlainScores(*only, prompt, 2);

      const auto one = Start(engine, Scored(prompt, 1, 2));
      EXPECT_EQ(one->Wait().completion_tokens, 1);
      ExpectPlainScores(*one, prompt, 2);
      EXPECT_EQ(one->ids(), engine.Run(Greedy(prompt, 1)));
      EXPECT_EQ(one->logprobs().size(), 1u);
    }
    EXPECT_TRUE(engine.ComesBackEmpty());
  }
}

// Case lp-01: with a prefix-cache hit the rows are computed again, not guessed.
TEST(EngineScoring, ACachedPromptIsScoredAllTheSame) {
  TestEngine engine;
  for (const std::size_t n : {64, 128, 150}) {
    const auto prompt = RandomPrompt(n, static_cast<std::uint32_t>(n));
    engine.Run(Cached(Greedy(prompt, 4)));
    for (const std::int64_t max_tokens : {0, 4}) {
      const auto listener = Start(engine, Cached(Scored(prompt, max_tokens, 3)));
      const FinishInfo info = listener->Wait();
      EXPECT_EQ(info.cached_tokens, 0) << "usage tells what was really taken from the cache";
      EXPECT_EQ(info.computed_tokens, static_cast<std::int64_t>(n));
      ExpectPlainScores(*listener, prompt, 3);
    }
    // What a scored prompt leaves in the cache serves others.
    EXPECT_GT(engine.Start(Cached(Greedy(prompt, 4))).second->Wait().cached_tokens + 1, 0);
  }
}

TEST(EngineScoring, BesideOthersAndPreemptedEachScoreComesOnce) {
  EngineSetup setup;
  setup.pool_rows = 272;
  setup.options.step_tokens = 16;
  TestEngine engine(setup);
  std::vector<std::vector<std::int32_t>> prompts;
  std::vector<std::shared_ptr<ScoringListener>> listeners;
  for (std::uint32_t i = 0; i < 6; ++i) {
    prompts.push_back(RandomPrompt(50, 30 + i));
    listeners.push_back(Start(engine, Cached(Scored(prompts.back(), 60, 1))));
  }
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_TRUE(listeners[i]->Wait().status.ok());
    EXPECT_EQ(listeners[i]->ids().size(), 60u);
    ExpectPlainScores(*listeners[i], prompts[i], 1);
  }
  EXPECT_GT(engine->GetStats().preemptions, 0);
}

TEST(EngineScoring, AReplayDeliversNoScoreAgain) {
  TestEngine engine;
  const auto prompt = RandomPrompt(70, 5);
  EngineRequest request = Scored(prompt, 8, 0);
  const auto whole = Start(engine, request);
  whole->Wait();
  request.resume_tokens = {whole->ids()[0], whole->ids()[1]};
  const auto rest = Start(engine, request);
  EXPECT_TRUE(rest->Wait().status.ok());
  EXPECT_TRUE(rest->scores().empty());
  EXPECT_EQ(rest->ids().size(), 6u);
}

TEST(EngineScoring, RefusalsNameTheField) {
  TestEngine engine;
  const auto refused = [&](EngineRequest request) {
    const auto handle = engine->Submit(std::move(request), std::make_shared<RecordingListener>());
    EXPECT_EQ(handle.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(handle.status().message());
  };
  EngineRequest request = Scored(RandomPrompt(100, 1), 0, 0);
  request.sampling.logprobs = false;
  EXPECT_THAT(refused(request), HasSubstr("prompt_logprobs: needs logprobs"));
  request = Scored(RandomPrompt(100, 1), 0, 0);
  request.handoff_end = 64;
  EXPECT_THAT(refused(request), HasSubstr("prompt_logprobs needs every row"));
  request.handoff_end = 0;
  request.sampling.prompt_logprobs = false;
  EXPECT_THAT(refused(request), HasSubstr("max_tokens: 0"));
  // A prompt may fill the context when nothing is generated.
  const auto full = Start(engine, Scored(RandomPrompt(2048, 1), 0, 0));
  EXPECT_TRUE(full->Wait().status.ok());
  EXPECT_EQ(full->scores().size(), 2048u);
  EXPECT_THAT(refused(Scored(RandomPrompt(2049, 1), 0, 0)), HasSubstr("prompt: 2049 tokens"));
}

}  // namespace
}  // namespace baton
