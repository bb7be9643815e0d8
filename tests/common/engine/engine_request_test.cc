// One request at a time: limits, stop conditions, streaming, log-probabilities, replay, life cycle.
#include <algorithm>
#include <cmath>
#include <limits>
#include <string>
#include <thread>
#include <vector>

#include "common/base/fault.h"
#include "common/engine/engine.h"
#include "common/tokenizer/utf8.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/engine/engine_fixture.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

void ExpectRefused(TestEngine& engine, const EngineRequest& request, const std::string& words) {
  auto listener = std::make_shared<RecordingListener>();
  const auto handle = engine->Submit(request, listener);
  EXPECT_EQ(handle.status().code(), absl::StatusCode::kInvalidArgument) << words;
  EXPECT_THAT(handle.status().message(), HasSubstr(words));
  EXPECT_EQ(listener->finishes(), 0);
}

// Cases len-01 and api-01: refused before anything runs, with the numbers.
TEST(EngineRequest, RefusalsNameFieldValueAndLimit) {
  EngineSetup setup;
  setup.pool_rows = 640;
  TestEngine engine(setup);
  const EngineRequest good = Greedy(RandomPrompt(100, 1), 10);
  const auto with = [&](auto change) {
    EngineRequest request = good;
    change(request);
    return request;
  };
  ExpectRefused(engine, with([](auto& r) { r.tokens.clear(); }), "the prompt is empty");
  ExpectRefused(engine, with([](auto& r) { r.tokens[7] = 512; }),
                "tokens[7]: token id 512 is outside the vocabulary [0, 511]");
  ExpectRefused(engine, with([](auto& r) { r.tokens[0] = -1; }), "tokens[0]");
  ExpectRefused(engine, with([](auto& r) { r.resume_tokens = {900}; }), "resume_tokens[0]");
  ExpectRefused(engine, with([](auto& r) { r.resume_tokens.assign(11, 1); }),
                "resume_tokens: 11 tokens, max_tokens is 10");
  ExpectRefused(engine, with([](auto& r) {
                  r.prefill_only = true;
                  r.resume_tokens = {900};
                }),
                "resume_tokens: a prefill_only request");
  // 100 + 540 rows fill all 40 x 6 pages; a landing's sinks would need 6 more.
  ExpectRefused(engine, with([](auto& r) {
                  r.stop.max_tokens = 540;
                  r.resume_tokens.assign(539, 1);
                  r.handoff_end = 64;
                }),
                "needs 246 KV pages, the pool has 240");
  ExpectRefused(engine, with([](auto& r) { r.adapter = 0; }), "adapter: 0");
  ExpectRefused(engine, with([](auto& r) { r.stop.max_tokens = 0; }), "max_tokens: 0");
  ExpectRefused(engine, with([](auto& r) { r.stop.max_tokens = -5; }), "max_tokens: -5");
  ExpectRefused(engine, with([](auto& r) { r.stop.max_tokens = 10000; }),
                "100 tokens + max_tokens 10000 are over the context of 2048");
  ExpectRefused(engine, with([](auto& r) { r.tokens.resize(2049, 1); }), "prompt: 2049 tokens");
  ExpectRefused(engine, with([](auto& r) { r.stop.stop = {"x", ""}; }), "stop[1] is empty");
  ExpectRefused(engine, with([](auto& r) {
                  r.sampling.temperature = std::numeric_limits<double>::quiet_NaN();
                }),
                "temperature");
  ExpectRefused(engine, with([](auto& r) { r.handoff_end = 100; }), "handoff_end: 100");
  ExpectRefused(engine, with([](auto& r) { r.handoff_end = 72; }), "handoff_end: 72");
  ExpectRefused(engine, with([](auto& r) { r.handoff_end = 128; }), "handoff_end: 128");
  ExpectRefused(engine, with([](auto& r) { r.report_from = 8; }), "report_from: 8");
  ExpectRefused(engine, with([](auto& r) { r.cache.blocks.resize(2); }), "cache.blocks: 2");
  // 100 + 600 rows are 44 pages in each of 6 tables; the pool has 40 x 6.
  ExpectRefused(engine, with([](auto& r) { r.stop.max_tokens = 600; }),
                "prompt of 100 tokens + max_tokens 600 needs 264 KV pages, the pool has 240");
  EXPECT_EQ(engine.Run(good).size(), 10u);  // the engine is unharmed
}

// Case api-02: a bad bias hurts its own request only; a good one works, also on a stop token.
TEST(EngineRequest, ABadBiasHurtsNobodyElse) {
  TestEngine engine;
  const EngineRequest good = Greedy(RandomPrompt(60, 9), 300);
  const auto expected = engine.Run(good);
  const auto running = engine.Start(good).second;
  ASSERT_TRUE(running->WaitTokens(3));
  const float inf = std::numeric_limits<float>::infinity();
  const std::pair<std::int32_t, float> bad[] = {{512, 5},
                                                {191222, -100},
                                                {-1, 1},
                                                {5, 1e9f},
                                                {5, -100.5f},
                                                {5, inf},
                                                {5, std::numeric_limits<float>::quiet_NaN()}};
  for (const auto& bias : bad) {
    EngineRequest request = good;
    request.sampling.logit_bias = {{7, 1.f}, bias};
    ExpectRefused(engine, request, "logit_bias[1]");
  }
  EngineRequest many = good;
  many.sampling.logit_bias.assign(1025, {5, 1.f});
  ExpectRefused(engine, many, "logit_bias: 1025 entries");
  EngineRequest forbidden = Greedy(good.tokens, 20);
  forbidden.sampling.logit_bias = {{expected[0], -100.f}};
  const auto others = engine.Run(forbidden);
  EXPECT_EQ(std::count(others.begin(), others.end(), expected[0]), 0);
  EXPECT_TRUE(running->Wait().status.ok());
  EXPECT_EQ(running->ids(), expected);
}

// The kind of len-01: every number of a request, at and behind its limits.
TEST(EngineRequest, EveryNumberHasItsRange) {
  TestEngine engine;
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const double inf = std::numeric_limits<double>::infinity();
  const auto each = [&](const char* field, auto member, const std::vector<double>& values) {
    for (const double value : values) {
      EngineRequest request = Greedy(RandomPrompt(10, 1), 4);
      request.sampling.*member = value;
      ExpectRefused(engine, request, field);
    }
  };
  each("temperature", &SamplingParams::temperature, {-0.1, 100.1, nan, inf, -inf});
  each("top_p", &SamplingParams::top_p, {0, -0.1, 1.1, nan, inf, -inf});
  each("min_p", &SamplingParams::min_p, {-0.1, 1.1, nan, inf, -inf});
  each("presence_penalty", &SamplingParams::presence_penalty, {-2.1, 2.1, nan, inf, -inf});
  each("frequency_penalty", &SamplingParams::frequency_penalty, {-2.1, 2.1, nan, inf, -inf});
  each("repetition_penalty", &SamplingParams::repetition_penalty, {0, -1, 10.1, nan, inf, -inf});
  const auto refused = [&](const char* field, auto change) {
    EngineRequest request = Greedy(RandomPrompt(10, 1), 4);
    change(request);
    ExpectRefused(engine, request, field);
  };
  constexpr auto kMin = std::numeric_limits<std::int64_t>::min();
  constexpr auto kMax = std::numeric_limits<std::int64_t>::max();
  for (const std::int64_t n : {std::int64_t{0}, std::int64_t{-5}, kMin, kMax, std::int64_t{2039}}) {
    refused("max_tokens", [n](auto& r) { r.stop.max_tokens = n; });
  }
  for (const std::int64_t n : {std::int64_t{-1}, std::int64_t{5}, kMin, kMax}) {
    refused("min_tokens", [n](auto& r) { r.stop.min_tokens = n; });
  }
  for (const int k : {-2, (1 << 30) + 1, std::numeric_limits<int>::min()}) {
    refused("top_k", [k](auto& r) { r.sampling.top_k = k; });
  }
  for (const int top : {-1, 21, std::numeric_limits<int>::max()}) {
    refused("top_logprobs", [top](auto& r) {
      r.sampling.logprobs = true;
      r.sampling.top_logprobs = top;
    });
  }
  refused("stop: 17 entries", [](auto& r) { r.stop.stop.assign(17, "x"); });
  refused("stop[0]", [](auto& r) { r.stop.stop = {std::string(1025, 'x')}; });
  refused("stop_token_ids: 129 entries", [](auto& r) { r.stop.stop_token_ids.assign(129, 1); });
  refused("stop_token_ids[1]", [](auto& r) { r.stop.stop_token_ids = {1, 512}; });
}

TEST(EngineRequest, TheQueueIsBounded) {
  EngineSetup setup;
  setup.options.max_running = 1;
  setup.options.max_waiting = 3;
  TestEngine engine(setup);
  std::vector<std::shared_ptr<RecordingListener>> listeners;
  absl::Status refused;
  for (int i = 0; i < 20 && refused.ok(); ++i) {
    auto listener = std::make_shared<RecordingListener>();
    const auto handle = engine->Submit(Greedy(RandomPrompt(50, 1), 400), listener);
    refused = handle.status();
    if (handle.ok()) listeners.push_back(listener);
  }
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(refused.message(), HasSubstr("the limit is 3"));
  for (auto& listener : listeners) EXPECT_TRUE(listener->Wait().status.ok());
}

TEST(EngineRequest, StopStringsCutTheTextAndCountTheToken) {
  TestEngine engine;
  const EngineRequest request = Greedy(RandomPrompt(40, 3), 60);
  const auto whole = engine.Start(request).second;
  whole->Wait();
  const std::string text = whole->text();
  ASSERT_GT(text.size(), 30u);
  // Every few places of the text, with lengths that span tokens.
  for (std::size_t begin = 5; begin + 8 < text.size(); begin += 7) {
    for (const std::size_t length : {1, 3, 8}) {
      const std::string stop = text.substr(begin, length);
      if (FirstInvalidUtf8(stop)) continue;
      EngineRequest stopped = request;
      stopped.stop.stop = {"never in there", stop};
      const auto listener = engine.Start(stopped).second;
      const FinishInfo info = listener->Wait();
      EXPECT_EQ(listener->text(), text.substr(0, text.find(stop)));
      EXPECT_EQ(info.reason, FinishReason::kStop);
      EXPECT_EQ(info.stop_text, stop);
      EXPECT_EQ(info.completion_tokens, static_cast<std::int64_t>(listener->ids().size()));
      EXPECT_LT(info.completion_tokens, 60);
    }
  }
  EngineRequest unmatched = request;
  unmatched.stop.stop = {text.substr(10, 6) + "\x01\x02nowhere"};
  const auto listener = engine.Start(unmatched).second;
  EXPECT_EQ(listener->Wait().reason, FinishReason::kLength);
  EXPECT_EQ(listener->text(), text);  // what was held back came out
}

TEST(EngineRequest, AStopStringThatWaitsForALongerOneStillEndsTheText) {
  TestEngine engine;
  const EngineRequest request = Greedy(RandomPrompt(40, 3), 60);
  const auto whole = engine.Start(request).second;
  whole->Wait();
  const std::string text = whole->text();
  std::size_t begin = text.size() - 1;  // of the shortest end that is nowhere else
  while (begin > 2 && text.find(text.substr(begin)) != begin) --begin;
  ASSERT_GT(begin, 2u);
  // The first is complete when max_tokens is reached; the second begins before it and could still
  // be completed by another token.
  EngineRequest stopped = request;
  stopped.stop.stop = {text.substr(begin), text.substr(begin - 2) + "nowhere"};
  const auto listener = engine.Start(stopped).second;
  const FinishInfo info = listener->Wait();
  EXPECT_EQ(listener->text(), text.substr(0, begin));
  EXPECT_EQ(info.reason, FinishReason::kStop);
  EXPECT_EQ(info.stop_text, text.substr(begin));
}

TEST(EngineRequest, DeltasHoldWholeCharacters) {
  TestEngine engine;
  for (std::uint32_t seed = 0; seed < 5; ++seed) {
    const auto listener = engine.Start(Greedy(RandomPrompt(20, seed), 80)).second;
    listener->Wait();
    for (const std::string& delta : listener->deltas()) {
      EXPECT_FALSE(FirstInvalidUtf8(delta).has_value());
    }
    EXPECT_EQ(listener->text(),
              *TinyModel().tokenizer->Decode(listener->ids(), {.skip_special = true}));
  }
}

TEST(EngineRequest, EndTokensEndWithoutText) {
  TestEngine engine;
  EngineRequest request = Greedy(RandomPrompt(40, 3), 40);
  const auto free_run = engine.Run(request);
  const std::int32_t end = free_run[20];
  const auto first = static_cast<std::int64_t>(std::find(free_run.begin(), free_run.end(), end) -
                                               free_run.begin());

  // Case tpl-08: any id of the list ends it, not only the first.
  std::int32_t other = 0;
  while (std::find(free_run.begin(), free_run.end(), other) != free_run.end()) ++other;
  request.eos_token_ids = {other, end};
  EXPECT_EQ(engine.Run(request), free_run);  // ignore_eos
  EngineRequest normal = request;
  normal.stop.ignore_eos = false;
  const auto listener = engine.Start(normal).second;
  const FinishInfo info = listener->Wait();
  EXPECT_EQ(info.reason, FinishReason::kStop);
  EXPECT_EQ(info.stop_token_id, end);
  EXPECT_EQ(info.completion_tokens, first + 1);
  EXPECT_EQ(listener->ids().size(), static_cast<std::size_t>(first + 1));
  const std::vector<std::int32_t> shown(free_run.begin(), free_run.begin() + first);
  EXPECT_EQ(listener->text(), *TinyModel().tokenizer->Decode(shown, {.skip_special = true}));

  EngineRequest by_id = request;
  by_id.stop.stop_token_ids = {end};
  EXPECT_EQ(engine.Start(by_id).second->Wait().stop_token_id, end);

  EngineRequest at_least = normal;
  at_least.stop.min_tokens = first + 5;
  const auto longer = engine.Start(at_least).second;
  longer->Wait();
  const auto ids = longer->ids();
  ASSERT_GE(ids.size(), static_cast<std::size_t>(first + 5));
  EXPECT_EQ(std::find(ids.begin(), ids.begin() + first + 5, end), ids.begin() + first + 5);
}

TEST(EngineRequest, LogitBiasForbidsAToken) {
  TestEngine engine;
  EngineRequest request = Greedy(RandomPrompt(40, 3), 20);
  const std::int32_t favourite = engine.Run(request)[0];
  request.sampling.logit_bias = {{favourite, -100.f}};
  const auto ids = engine.Run(request);
  EXPECT_EQ(std::count(ids.begin(), ids.end(), favourite), 0);
}

TEST(EngineRequest, LogprobsSumToOneAndCarryTheTokensBytes) {
  TestEngine engine;
  EngineRequest request = Greedy(RandomPrompt(40, 3), 10);
  request.sampling.logprobs = true;
  request.sampling.top_logprobs = 20;
  const auto listener = engine.Start(request).second;
  listener->Wait();
  const auto ids = listener->ids();
  const auto logprobs = listener->logprobs();
  ASSERT_EQ(logprobs.size(), ids.size());
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ASSERT_EQ(logprobs[i].size(), 21u);
    EXPECT_EQ(logprobs[i][0].token_id, ids[i]);
    EXPECT_EQ(logprobs[i][1].token_id, ids[i]);  // greedy: also the most likely
    EXPECT_EQ(logprobs[i][0].bytes, TinyModel().tokenizer->TokenBytes(ids[i]));
    double sum = 0;
    for (std::size_t k = 1; k < 21; ++k) {
      sum += std::exp(logprobs[i][k].logprob);
      if (k > 1) {
        EXPECT_LE(logprobs[i][k].logprob, logprobs[i][k - 1].logprob);
      }
    }
    EXPECT_LE(sum, 1.0001);
    EXPECT_GT(sum, 0.05);
  }
}

TEST(EngineRequest, ReplayContinuesExactly) {
  TestEngine engine;
  for (const bool random : {false, true}) {
    EngineRequest request = Greedy(RandomPrompt(40, 3), 40);
    if (random) {
      request.sampling.temperature = 1;
      request.sampling.seed = 5;
      request.sampling.frequency_penalty = 0.5;
    }
    const auto whole = engine.Start(request).second;
    whole->Wait();
    const auto ids = whole->ids();
    std::string sent;
    for (std::size_t k = 0; k < ids.size(); ++k) {
      EngineRequest replay = request;
      replay.resume_tokens.assign(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(k));
      const auto rest = engine.Start(replay).second;
      const FinishInfo info = rest->Wait();
      EXPECT_EQ(rest->ids(),
                std::vector<std::int32_t>(ids.begin() + static_cast<std::ptrdiff_t>(k), ids.end()));
      EXPECT_EQ(sent + rest->text(), whole->text());
      EXPECT_EQ(info.completion_tokens, 40);
      sent += whole->deltas()[k];
    }
    EngineRequest complete = request;
    complete.resume_tokens = ids;
    const auto nothing = engine.Start(complete).second;
    EXPECT_EQ(nothing->Wait().reason, FinishReason::kLength);
    EXPECT_TRUE(nothing->ids().empty());
    EXPECT_TRUE(nothing->text().empty());
  }
}

TEST(EngineRequest, AbortFreesEverything) {
  TestEngine engine;
  auto [handle, listener] = engine.Start(Greedy(RandomPrompt(100, 3), 1900));
  ASSERT_TRUE(listener->WaitTokens(3));
  engine->Abort(handle, absl::CancelledError("client went away"));
  const FinishInfo info = listener->Wait();
  EXPECT_EQ(info.status, absl::CancelledError("client went away"));
  EXPECT_EQ(info.reason, FinishReason::kCancelled);
  EXPECT_GE(info.completion_tokens, 3);
  EXPECT_EQ(engine.pool().GetStats().held, 0);
  EXPECT_EQ(engine.pool().GetStats().reserved, 0);
  engine->Abort(handle, absl::CancelledError("again"));  // unknown by now
  engine->Abort(123456, absl::CancelledError("never known"));
  EXPECT_EQ(listener->finishes(), 1);
}

TEST(EngineRequest, AFailedStepFailsItsRequestsOnly) {
  TestEngine engine;
  const auto first = engine.Start(Greedy(RandomPrompt(50, 3), 1900)).second;
  ASSERT_TRUE(first->WaitTokens(5));
  {
    Fault fault;
    fault.max_hits = 1;
    fault.error = absl::InternalError("injected");
    const ScopedFault scoped("engine.step", fault);
    const FinishInfo info = first->Wait();
    EXPECT_EQ(info.status, absl::InternalError("injected"));
    EXPECT_EQ(info.reason, FinishReason::kError);
  }
  EXPECT_EQ(engine.Run(Greedy(RandomPrompt(50, 3), 10)).size(), 10u);
  EXPECT_TRUE(engine.ComesBackEmpty());
}

TEST(EngineRequest, DrainRefusesNewAndFinishesOld) {
  TestEngine engine;
  const auto listener = engine.Start(Greedy(RandomPrompt(20, 3), 200)).second;
  EXPECT_FALSE(engine->Drain(std::chrono::nanoseconds(1)) && listener->finishes() == 0);
  const auto refused =
      engine->Submit(Greedy(RandomPrompt(20, 3), 5), std::make_shared<RecordingListener>());
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(engine->Drain(kPatience));
  EXPECT_TRUE(listener->Wait().status.ok());
  EXPECT_EQ(listener->ids().size(), 200u);
}

TEST(EngineRequest, DestructionCancelsWhatRuns) {
  std::shared_ptr<RecordingListener> running, waiting;
  {
    EngineSetup setup;
    setup.options.max_running = 1;
    TestEngine engine(setup);
    running = engine.Start(Greedy(RandomPrompt(20, 3), 1900)).second;
    waiting = engine.Start(Greedy(RandomPrompt(20, 4), 1900)).second;
    running->WaitTokens(1);
  }
  EXPECT_EQ(running->Wait().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(waiting->Wait().status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(waiting->admissions(), 0);
}

TEST(EngineRequest, MetricsSayWhatHappened) {
  MetricRegistry metrics;
  EngineSetup setup;
  setup.metrics = &metrics;
  TestEngine engine(setup);
  const auto prompt = RandomPrompt(130, 3);
  engine.Run(Cached(Greedy(prompt, 7)));
  engine.Run(Cached(Greedy(prompt, 7)));
  ASSERT_TRUE(engine.ComesBackEmpty());
  ASSERT_TRUE(engine->Drain(kPatience));
  usleep(700000);  // an idle engine refreshes its gauges twice a second
  const std::string text = metrics.SerializeText();
  for (const char* line : {"baton_prompt_tokens_total{model=\"tiny\"} 260",
                           "baton_generation_tokens_total{model=\"tiny\"} 14",
                           "baton_prefix_cache_queries_tokens_total{model=\"tiny\"} 260",
                           "baton_prefix_cache_hits_tokens_total{model=\"tiny\"} 128",
                           "baton_kv_cache_usage_ratio{model=\"tiny\"} 0",
                           "baton_kv_pages{model=\"tiny\",state=\"held\"} 0",
                           "baton_num_requests_running{model=\"tiny\"} 0",
                           "baton_num_requests_waiting{model=\"tiny\"} 0"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(EngineRequest, TimesAddUp) {
  TestEngine engine;
  const FinishInfo info = engine.Start(Greedy(RandomPrompt(200, 3), 20)).second->Wait();
  EXPECT_GE(info.queue_s, 0);
  EXPECT_GT(info.prefill_s, 0);
  EXPECT_GE(info.first_token_s, info.prefill_s);
  EXPECT_GE(info.total_s, info.first_token_s);
}

}  // namespace
}  // namespace baton
