// Who computes when places or pages are short.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/engine/engine.h"
#include "gtest/gtest.h"
#include "tests/common/engine/engine_fixture.h"

namespace baton {
namespace {

EngineRequest Important(std::vector<std::int32_t> tokens, std::int64_t max_tokens) {
  EngineRequest request = Greedy(std::move(tokens), max_tokens);
  request.priority = 1;
  return request;
}

TEST(EngineAdmission, WhoWaitsForAPrefixTakesNoPlaceInTheStep) {
  EngineSetup setup;
  setup.options.max_running = 1;
  TestEngine engine(setup);
  const auto prompt = RandomPrompt(200, 3);
  EngineRequest lands = Cached(Greedy(prompt, 8), "approx");
  lands.handoff_end = 128;
  auto [handle, parked] = engine.Start(lands);
  ASSERT_NE(parked->WaitAdmitted().landing, nullptr);
  const auto local = RandomPrompt(40, 4);
  EXPECT_EQ(engine.Run(Greedy(local, 20)).size(), 20u);  // would hang behind the parked one
  // The prefix arrives while another runs: they share the one place, and both end.
  const auto other = engine.Start(Greedy(local, 400)).second;
  ASSERT_TRUE(other->WaitTokens(1));
  engine->AbandonPrefix(handle);
  EXPECT_TRUE(parked->Wait().status.ok());
  EXPECT_TRUE(other->Wait().status.ok());
  parked->DropLanding();
  EXPECT_EQ(parked->ids(), engine.Run(Greedy(prompt, 8)));
  EXPECT_TRUE(engine.ComesBackEmpty());
}

TEST(EngineAdmission, AHigherPriorityTakesThePlaceOfALowerOne) {
  EngineSetup setup;
  setup.options.max_running = 1;
  TestEngine engine(setup);
  const auto low = engine.Start(Greedy(RandomPrompt(40, 1), 1500)).second;
  ASSERT_TRUE(low->WaitTokens(2));
  const auto high = engine.Start(Important(RandomPrompt(40, 2), 20)).second;
  EXPECT_TRUE(high->Wait().status.ok());
  EXPECT_EQ(low->finishes(), 0);
  EXPECT_EQ(low->Wait().computed_tokens, 40) << "it paused; its pages were not needed";
}

TEST(EngineAdmission, AHigherPriorityTakesThePagesOfALowerOne) {
  EngineSetup setup;
  setup.pool_rows = 1024;
  TestEngine engine(setup);
  // Its 700 rows leave no room for 600 more.
  const auto low_prompt = RandomPrompt(700, 1);
  const auto low = engine.Start(Greedy(low_prompt, 300)).second;
  ASSERT_TRUE(low->WaitTokens(2));
  const auto same = engine.Start(Greedy(RandomPrompt(600, 2), 4)).second;
  const auto high = engine.Start(Important(RandomPrompt(600, 3), 4)).second;
  EXPECT_TRUE(high->Wait().status.ok());
  EXPECT_EQ(low->finishes(), 0) << "an equal waits, a more important one does not";
  EXPECT_EQ(same->finishes(), 0);
  EXPECT_GT(engine->GetStats().preemptions, 0);
  EXPECT_TRUE(low->Wait().status.ok());
  EXPECT_TRUE(same->Wait().status.ok());
  TestEngine alone;
  EXPECT_EQ(low->ids(), alone.Run(Greedy(low_prompt, 300)));
  EXPECT_TRUE(engine.ComesBackEmpty());
}

TEST(EngineAdmission, NobodyIsPreemptedForOneWhoWouldNotFitAnyway) {
  EngineSetup setup;
  setup.pool_rows = 1024;
  TestEngine engine(setup);
  EngineRequest first = Important(RandomPrompt(500, 1), 200);
  const auto equal = engine.Start(first).second;
  ASSERT_TRUE(equal->WaitTokens(1));
  const auto low = engine.Start(Greedy(RandomPrompt(200, 2), 100)).second;
  ASSERT_TRUE(low->WaitTokens(1));
  const auto high = engine.Start(Important(RandomPrompt(900, 3), 4)).second;
  EXPECT_TRUE(low->Wait().status.ok());
  EXPECT_TRUE(equal->Wait().status.ok());
  EXPECT_TRUE(high->Wait().status.ok());
  EXPECT_EQ(low->Wait().computed_tokens, 200) << "pre-empted for nothing";
}

struct Shared {
  std::shared_ptr<PagePool> pool;
  ComputeGate gate;
  SerialExecutor executor;
  std::vector<std::unique_ptr<Engine>> engines;

  explicit Shared(std::int64_t rows) {
    const TinyNode& node = TinyModel();
    pool = *PagePool::Create({.head_dim = 16, .dtype = DType::kF32}, TinyPages(rows));
    for (const char* name : {"a", "b"}) {
      EngineResources resources;
      resources.model = node.model;
      resources.pool = pool;
      resources.gate = &gate;
      resources.executor = &executor;
      engines.push_back(*Engine::Create(std::move(resources), {.name = name, .step_tokens = 128}));
    }
  }
  std::shared_ptr<RecordingListener> Start(int engine, EngineRequest request) {
    auto listener = std::make_shared<RecordingListener>();
    EXPECT_TRUE(
        engines[static_cast<std::size_t>(engine)]->Submit(std::move(request), listener).ok());
    return listener;
  }
};

TEST(EngineAdmission, CachedPagesOfAnotherEngineGoBeforeASequenceIsPreempted) {
  Shared shared(960);
  // The second engine's cache holds 640 rows nobody uses.
  EXPECT_TRUE(shared.Start(1, Cached(Greedy(RandomPrompt(640, 9), 2)))->Wait().status.ok());
  ASSERT_TRUE([&] {
    for (int i = 0; i < 2000; ++i) {
      if (shared.engines[1]->GetStats().cached_blocks == 10) return true;
      usleep(1000);
    }
    return false;
  }());
  // Two sequences of the first grow to 2 x 440 rows.
  std::vector<std::shared_ptr<RecordingListener>> growing;
  for (std::uint32_t i = 0; i < 2; ++i) {
    growing.push_back(shared.Start(0, Greedy(RandomPrompt(40, i), 400)));
  }
  for (const auto& listener : growing) EXPECT_TRUE(listener->Wait().status.ok());
  EXPECT_EQ(shared.engines[0]->GetStats().preemptions, 0);
}

TEST(EngineAdmission, WhenTheOtherHasNothingToGivePreemptionStillHappens) {
  Shared shared(960);
  std::vector<std::shared_ptr<RecordingListener>> all;
  for (std::uint32_t i = 0; i < 3; ++i) {
    all.push_back(shared.Start(0, Cached(Greedy(RandomPrompt(100, i), 400))));
    all.push_back(shared.Start(1, Cached(Greedy(RandomPrompt(100, 10 + i), 400))));
  }
  for (const auto& listener : all) {
    EXPECT_TRUE(listener->Wait().status.ok());
    EXPECT_EQ(listener->ids().size(), 400u);
  }
  EXPECT_GT(shared.engines[0]->GetStats().preemptions + shared.engines[1]->GetStats().preemptions,
            0);
}

}  // namespace
}  // namespace baton
