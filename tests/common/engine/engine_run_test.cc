// A prefix of which a run of layers is computed by the consumer: a landing is filled with K/V of
// the other layers and the stream that enters the run.
#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <vector>

#include "common/engine/engine.h"
#include "common/model/single_sequence.h"
#include "gtest/gtest.h"
#include "tests/common/engine/engine_fixture.h"

namespace baton {
namespace {

constexpr std::int32_t kHandoffEnd = 192;

// The stream of the tiny model that enters `layer`: [tokens, hidden], as a plain pass gives it.
std::vector<float> StreamAt(const std::vector<std::int32_t>& tokens, int layer) {
  const TinyNode& node = TinyModel();
  SerialExecutor executor;
  ForwardPass pass(node.model, nullptr, executor);
  const auto rows = static_cast<std::int32_t>(tokens.size());
  const auto sequence = *SingleSequence::Create(node.model->config(), DType::kF32, rows);
  std::vector<std::int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  const SequenceSlice slice{0, rows, &sequence->view(), kNoAdapter};
  float* hidden = pass.Embed(tokens);
  pass.RunLayers(0, layer, hidden, {.positions = positions, .sequences = {&slice, 1}}, nullptr);
  return {hidden, hidden + rows * node.model->config().hidden};
}

EngineRequest RunConsumer(const std::vector<std::int32_t>& tokens, LayerRun run,
                          std::int64_t max_tokens = 16) {
  EngineRequest request = Cached(Greedy(tokens, max_tokens), "approx");
  request.handoff_end = kHandoffEnd;
  request.run = run;
  request.sampling.logprobs = true;
  request.sampling.top_logprobs = 3;
  return request;
}

// What a producer of the same model sends.
struct Sent {
  std::vector<KvReady> kv;
  std::vector<float> stream;  // of all tokens
};

Sent Produce(TestEngine& producer, const std::vector<std::int32_t>& tokens, LayerRun run) {
  const auto listener = producer.Start(Producer(tokens)).second;
  listener->Wait();
  return {listener->TakeKv(), StreamAt(tokens, run.begin)};
}

// Pages of the run's layers stay as they are.
void FillAround(TestEngine& consumer, const Sent& sent, const PrefixLanding& landing) {
  for (const KvReady& ready : sent.kv) {
    if (!landing.run.contains(ready.layer)) Copy(ready, landing, consumer.pool().layout());
  }
  landing.stream->Write(landing.begin, landing.end - landing.begin,
                        sent.stream.data() + landing.begin * landing.stream->hidden());
}

// NaN where a worker does not write: what reads it before it is computed shows.
void Poison(TestEngine& consumer, const PrefixLanding& landing) {
  const KvPageLayout& layout = consumer.pool().layout();
  const std::vector<float> nan(layout.payload_bytes() / sizeof(float),
                               std::numeric_limits<float>::quiet_NaN());
  for (int layer = landing.run.begin; layer < landing.run.end; ++layer) {
    for (int head = 0; head < landing.kv_heads; ++head) {
      const auto& pages = landing.pages[static_cast<std::size_t>(layer * landing.kv_heads + head)];
      for (std::size_t i = 0; i < pages.size(); ++i) {
        CopyKvRows(layout, reinterpret_cast<const std::byte*>(nan.data()), pages[i].data(),
                   i == 0 ? landing.begin % kPageRows : 0, kPageRows);
      }
    }
  }
}

void ExpectSame(const RecordingListener& got, const RecordingListener& want) {
  EXPECT_EQ(got.ids(), want.ids());
  const auto a = got.logprobs(), b = want.logprobs();
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    for (std::size_t j = 0; j < a[i].size(); ++j) EXPECT_EQ(a[i][j].logprob, b[i][j].logprob);
  }
}

EngineRequest Native(const std::vector<std::int32_t>& tokens, std::int64_t max_tokens = 16) {
  EngineRequest request = Greedy(tokens, max_tokens);
  request.sampling.logprobs = true;
  request.sampling.top_logprobs = 3;
  return request;
}

TEST(EngineRun, GivesTheBitsOfComputingAllLayers) {
  const auto prompt = RandomPrompt(250, 3);
  TestEngine producer, native;
  const auto want = native.Start(Native(prompt)).second;
  want->Wait();
  for (const LayerRun run :
       {LayerRun{0, 1}, LayerRun{0, 3}, LayerRun{1, 2}, LayerRun{1, 3}, LayerRun{2, 3}}) {
    for (const std::int32_t step_tokens : {16, 50, 1024}) {
      EngineSetup setup;
      setup.options.step_tokens = step_tokens;
      TestEngine consumer(setup);
      auto [handle, listener] = consumer.Start(RunConsumer(prompt, run));
      const Admission admission = listener->WaitAdmitted();
      ASSERT_NE(admission.landing, nullptr);
      ASSERT_NE(admission.landing->stream, nullptr);
      EXPECT_EQ(admission.landing->run.begin, run.begin);
      EXPECT_EQ(admission.landing->run.end, run.end);
      Poison(consumer, *admission.landing);
      FillAround(consumer, Produce(producer, prompt, run), *admission.landing);
      consumer->PublishPrefix(handle);
      const FinishInfo info = listener->Wait();
      EXPECT_TRUE(info.status.ok());
      EXPECT_EQ(info.transferred_tokens, kHandoffEnd - 4);
      EXPECT_EQ(info.computed_tokens, 250 - info.transferred_tokens);
      ExpectSame(*listener, *want);
    }
  }
}

TEST(EngineRun, SeveralAtOnceWithOtherRunsAndDecodesBetween) {
  EngineSetup setup;
  setup.options.step_tokens = 96;
  MetricRegistry metrics;
  setup.metrics = &metrics;
  TestEngine producer, native, consumer(setup);
  struct Live {
    std::vector<std::int32_t> prompt;
    RequestHandle handle = 0;
    std::shared_ptr<RecordingListener> listener;
    LayerRun run;
  };
  std::vector<Live> live;
  const auto local = consumer.Start(Greedy(RandomPrompt(20, 77), 200)).second;
  for (std::uint32_t i = 0; i < 6; ++i) {
    const LayerRun run = i % 3 == 2 ? LayerRun{0, 2} : LayerRun{1, 3};
    const auto prompt = RandomPrompt(200 + 10 * i, i);
    auto [handle, listener] = consumer.Start(RunConsumer(prompt, run, 24));
    live.push_back({prompt, handle, listener, run});
  }
  for (Live& one : live) {
    const Admission admission = one.listener->WaitAdmitted();
    FillAround(consumer, Produce(producer, one.prompt, one.run), *admission.landing);
    one.listener->DropLanding();
  }
  for (Live& one : live) consumer->PublishPrefix(one.handle);
  for (Live& one : live) {
    EXPECT_TRUE(one.listener->Wait().status.ok());
    const auto want = native.Start(Native(one.prompt, 24)).second;
    want->Wait();
    ExpectSame(*one.listener, *want);
  }
  EXPECT_TRUE(local->Wait().status.ok());
  EXPECT_NE(metrics.SerializeText().find("baton_run_tokens_total{model=\"tiny\"} 1128"),
            std::string::npos);
  EXPECT_TRUE(consumer.ComesBackEmpty());
}

TEST(EngineRun, BlocksAreSharedOnceAllTheirLayersAreIn) {
  TestEngine producer, consumer;
  const LayerRun run{1, 3};
  const auto prompt = RandomPrompt(300, 6);
  auto [handle, listener] = consumer.Start(RunConsumer(prompt, run));
  {
    const Admission admission = listener->WaitAdmitted();
    FillAround(consumer, Produce(producer, prompt, run), *admission.landing);
  }
  consumer->PublishPrefix(handle);
  listener->Wait();
  listener->DropLanding();
  // The stream's pages are back; four blocks stay.
  const PagePool::Stats stats = consumer.pool().GetStats();
  EXPECT_EQ(stats.held, TinyPages(256));
  EXPECT_EQ(stats.reserved, 0);

  const auto again = consumer.Start(RunConsumer(prompt, run)).second;
  EXPECT_EQ(again->WaitAdmitted().landing, nullptr);
  EXPECT_EQ(again->Wait().cached_tokens, 256);
  EXPECT_EQ(again->ids(), listener->ids());

  // A longer prompt goes on behind them: its landing begins there, for all layers.
  auto longer = prompt;
  longer.resize(prompt.size() + 200, 7);
  EngineRequest request = RunConsumer(longer, run);
  request.handoff_end = 448;
  auto [next, more] = consumer.Start(request);
  {
    const Admission admission = more->WaitAdmitted();
    ASSERT_NE(admission.landing, nullptr);
    EXPECT_EQ(admission.landing->begin, 256);
    FillAround(consumer, Produce(producer, longer, run), *admission.landing);
    more->DropLanding();
  }
  consumer->PublishPrefix(next);
  more->Wait();
  const auto want = producer.Start(Native(longer)).second;
  want->Wait();
  ExpectSame(*more, *want);
  EXPECT_TRUE(consumer.ComesBackEmpty());
}

TEST(EngineRun, AbandonedPrefixIsComputedInAllLayers) {
  TestEngine consumer, native;
  const auto prompt = RandomPrompt(300, 8);
  auto [handle, listener] = consumer.Start(RunConsumer(prompt, {1, 3}));
  listener->WaitAdmitted();
  listener->DropLanding();
  consumer->AbandonPrefix(handle);
  EXPECT_TRUE(listener->Wait().status.ok());
  const auto want = native.Start(Native(prompt)).second;
  want->Wait();
  ExpectSame(*listener, *want);
  EXPECT_TRUE(consumer.ComesBackEmpty());
}

TEST(EngineRun, PreemptedInsideARunIsRecomputed) {
  EngineSetup setup;
  setup.pool_rows = 640;
  setup.options.step_tokens = 16;  // a run takes a dozen steps
  TestEngine producer, native, consumer(setup);
  const LayerRun run{1, 3};
  const auto prompt = RandomPrompt(300, 9);
  auto [handle, listener] = consumer.Start(RunConsumer(prompt, run));
  {
    const Admission admission = listener->WaitAdmitted();
    FillAround(consumer, Produce(producer, prompt, run), *admission.landing);
    listener->DropLanding();
  }
  consumer->PublishPrefix(handle);
  EngineRequest urgent = Greedy(RandomPrompt(500, 1), 4);
  urgent.priority = 1;
  EXPECT_TRUE(consumer.Start(urgent).second->Wait().status.ok());
  EXPECT_TRUE(listener->Wait().status.ok());
  EXPECT_EQ(listener->admissions(), 1);
  const auto want = native.Start(Native(prompt)).second;
  want->Wait();
  ExpectSame(*listener, *want);
  EXPECT_GT(consumer->GetStats().preemptions, 0);
  EXPECT_TRUE(consumer.ComesBackEmpty());
}

TEST(EngineRun, AbortsAtAnyMomentLeaveNothingHeld) {
  EngineSetup setup;
  setup.options.step_tokens = 16;
  TestEngine producer, consumer(setup);
  const LayerRun run{0, 2};
  const auto prompt = RandomPrompt(260, 12);
  const Sent sent = Produce(producer, prompt, run);
  std::mt19937 rng(5);
  for (int i = 0; i < 40; ++i) {
    EngineRequest request = RunConsumer(prompt, run, 200);
    request.cache = {};
    auto [handle, listener] = consumer.Start(request);
    {
      const Admission admission = listener->WaitAdmitted();
      FillAround(consumer, sent, *admission.landing);
    }
    if (i % 2 == 0) listener->DropLanding();
    if (i % 5 != 0) consumer->PublishPrefix(handle);
    usleep(static_cast<useconds_t>(rng() % 4000));
    consumer->Abort(handle, absl::CancelledError("client went away"));
    listener->Wait();
    listener->DropLanding();
  }
  EXPECT_TRUE(consumer.ComesBackEmpty());
}

TEST(EngineRun, ProducerReportsPagesAroundItAndItsStream) {
  for (const std::int32_t step_tokens : {16, 1024}) {
    EngineSetup setup;
    setup.options.step_tokens = step_tokens;
    TestEngine producer(setup);
    const LayerRun run{1, 2};
    const auto prompt = RandomPrompt(130, 2);
    const auto stream = StreamAt(prompt, run.begin);
    for (int round = 0; round < 2; ++round) {  // no cache has the stream: both run
      EngineRequest request = Producer(prompt);
      request.report = ReportedStates::kAroundRun;
      request.run = run;
      request.report_from = 64;
      const auto listener = producer.Start(request).second;
      EXPECT_EQ(listener->Wait().cached_tokens, round == 0 ? 0 : 64);
      std::vector<std::int32_t> next(3, 64);
      for (const KvReady& ready : listener->TakeKv()) {
        EXPECT_EQ(ready.begin, next[static_cast<std::size_t>(ready.layer)]);
        next[static_cast<std::size_t>(ready.layer)] = ready.end;
      }
      EXPECT_EQ(next, (std::vector<std::int32_t>{130, 64, 130}));
      const auto hidden = static_cast<std::size_t>(TinyModel().model->config().hidden);
      std::int32_t row = 64;
      for (const StatesReady& states : listener->TakeStates()) {
        EXPECT_EQ(states.layer, run.begin);
        EXPECT_EQ(states.begin, row);
        ASSERT_EQ(states.width, static_cast<std::int64_t>(hidden) + 1);
        for (; row < states.end; ++row) {
          const float* x =
              states.rows.data() + static_cast<std::size_t>(row - states.begin) * (hidden + 1);
          for (std::size_t i = 0; i < hidden; ++i) {
            const float want = stream[static_cast<std::size_t>(row) * hidden + i];
            EXPECT_NEAR(x[i] * x[hidden], want, 1e-5 * (1 + std::abs(want)));
          }
        }
      }
      EXPECT_EQ(row, 130);
    }
  }
}

TEST(EngineRun, ARunThatDoesNotFitIsRefused) {
  TestEngine engine;
  const auto prompt = RandomPrompt(250, 1);
  const auto refused = [&](EngineRequest request) {
    const auto status = engine->Submit(request, std::make_shared<RecordingListener>()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(status.message().find("run: "), std::string::npos) << status;
  };
  refused(RunConsumer(prompt, {1, 4}));
  refused(RunConsumer(prompt, {-1, 2}));
  EngineRequest no_handoff = RunConsumer(prompt, {1, 2});
  no_handoff.handoff_end = 0;
  refused(no_handoff);
  EngineRequest no_run = Producer(prompt);
  no_run.report = ReportedStates::kAroundRun;
  refused(no_run);
  EngineRequest pages_only = Producer(prompt);
  pages_only.run = {1, 2};
  refused(pages_only);
}

}  // namespace
}  // namespace baton
