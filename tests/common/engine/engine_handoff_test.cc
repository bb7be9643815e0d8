// The hand-off inside one process: a producer's pages are copied into a consumer's landing.
#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "common/engine/engine.h"
#include "gtest/gtest.h"
#include "kernels/kv_write.h"
#include "tests/common/engine/engine_fixture.h"

namespace baton {
namespace {

EngineRequest Consumer(const std::vector<std::int32_t>& tokens, std::int32_t handoff_end,
                       std::int64_t max_tokens = 16) {
  EngineRequest request = Cached(Greedy(tokens, max_tokens), "approx");
  request.handoff_end = handoff_end;
  return request;
}

std::int32_t Shareable(std::size_t n) {
  return static_cast<std::int32_t>(ShareablePrefix(static_cast<std::int64_t>(n), std::nullopt));
}

// Fills the landing from the producer's reports; every layer must be complete.
void Fill(TestEngine& consumer, const std::vector<KvReady>& reports, const PrefixLanding& landing) {
  std::int64_t rows = 0;
  for (const KvReady& ready : reports) rows += Copy(ready, landing, consumer.pool().layout());
  EXPECT_EQ(rows, static_cast<std::int64_t>(landing.end - landing.begin) * landing.layers);
}

TEST(EngineHandoff, ProducerReportsEveryRowOfEveryLayerOnce) {
  for (const std::int32_t step_tokens : {16, 50, 1024}) {
    EngineSetup setup;
    setup.options.step_tokens = step_tokens;
    TestEngine producer(setup);
    for (const std::size_t n : {1, 16, 64, 100, 129, 250}) {
      const auto prompt = RandomPrompt(n, static_cast<std::uint32_t>(n));
      for (int round = 0; round < 2; ++round) {  // second: from the cache
        const auto listener = producer.Start(Producer(prompt)).second;
        const FinishInfo info = listener->Wait();
        EXPECT_TRUE(info.status.ok());
        EXPECT_EQ(info.cached_tokens, round == 0 ? 0 : static_cast<std::int64_t>(n / 64 * 64));
        EXPECT_EQ(info.cached_tokens + info.computed_tokens, static_cast<std::int64_t>(n));
        std::vector<std::int32_t> next(3, 0);
        for (const KvReady& ready : listener->TakeKv()) {
          EXPECT_EQ(ready.begin, next[static_cast<std::size_t>(ready.layer)]);
          EXPECT_EQ(ready.begin % 16, 0);
          EXPECT_TRUE(ready.end % 16 == 0 || ready.end == static_cast<std::int32_t>(n));
          ASSERT_EQ(ready.pages.size(), 2u);
          EXPECT_EQ(ready.pages[1].size(),
                    static_cast<std::size_t>((ready.end - ready.begin + 15) / 16));
          next[static_cast<std::size_t>(ready.layer)] = ready.end;
        }
        EXPECT_EQ(next, std::vector<std::int32_t>(3, static_cast<std::int32_t>(n)));
        EXPECT_TRUE(listener->ids().empty());
      }
    }
    EXPECT_TRUE(producer.ComesBackEmpty());
  }
}

TEST(EngineHandoff, ProducerReportsFromWhereItIsAsked) {
  TestEngine producer;
  EngineRequest request = Producer(RandomPrompt(200, 4));
  request.report_from = 80;
  for (int round = 0; round < 2; ++round) {
    const auto listener = producer.Start(request).second;
    listener->Wait();
    std::int32_t first = 1000, last = 0;
    for (const KvReady& ready : listener->TakeKv()) {
      first = std::min(first, ready.begin);
      last = std::max(last, ready.end);
    }
    EXPECT_EQ(first, 80);
    EXPECT_EQ(last, 200);
  }
}

// The seam of the whole system: equal weights in fp32, raw pages shipped, token-identical.
TEST(EngineHandoff, RawPagesGiveTheTokensOfAMonolithicRun) {
  TestEngine producer, consumer, monolithic;
  for (std::size_t n = 10; n <= 300; n += 10) {
    const auto prompt = RandomPrompt(n, static_cast<std::uint32_t>(n));
    const std::int32_t end = Shareable(n);
    const auto expected = monolithic.Run(Greedy(prompt, 16));
    auto [handle, listener] = consumer.Start(Consumer(prompt, end));
    const Admission admission = listener->WaitAdmitted();
    if (end == 0) {
      EXPECT_EQ(admission.landing, nullptr);
    } else {
      ASSERT_NE(admission.landing, nullptr);
      EXPECT_EQ(admission.landing->begin, 4);
      EXPECT_EQ(admission.landing->end, end);
      EXPECT_EQ(admission.landing->first_page, 0);
      const auto source = producer.Start(Producer({prompt.begin(), prompt.begin() + end})).second;
      source->Wait();
      Fill(consumer, source->TakeKv(), *admission.landing);
      consumer->PublishPrefix(handle);
    }
    const FinishInfo info = listener->Wait();
    EXPECT_TRUE(info.status.ok());
    EXPECT_EQ(listener->ids(), expected) << n;
    EXPECT_EQ(info.transferred_tokens, end == 0 ? 0 : end - 4);
    EXPECT_EQ(info.computed_tokens, static_cast<std::int64_t>(n) - info.transferred_tokens);
    listener->DropLanding();
  }
  EXPECT_TRUE(producer.ComesBackEmpty());
  EXPECT_TRUE(consumer.ComesBackEmpty());
}

TEST(EngineHandoff, ManyAtOnceWithDecodesBetween) {
  TestEngine producer, consumer, monolithic;
  struct Run {
    std::vector<std::int32_t> prompt;
    RequestHandle handle;
    std::shared_ptr<RecordingListener> listener;
  };
  std::vector<Run> runs;
  for (std::uint32_t i = 0; i < 8; ++i) {
    const std::size_t n = 130 + 20 * i;
    const auto prompt = RandomPrompt(n, i);
    auto [handle, listener] = consumer.Start(Consumer(prompt, Shareable(n), 24));
    runs.push_back({prompt, handle, listener});
  }
  const auto local = consumer.Start(Greedy(RandomPrompt(20, 77), 300)).second;
  std::vector<std::thread> workers;
  for (Run& run : runs) {
    workers.emplace_back([&] {
      const Admission admission = run.listener->WaitAdmitted();
      const auto source = producer.Start(Producer(run.prompt)).second;
      source->Wait();
      Fill(consumer, source->TakeKv(), *admission.landing);
      run.listener->DropLanding();
      consumer->PublishPrefix(run.handle);
    });
  }
  for (auto& worker : workers) worker.join();
  for (Run& run : runs) {
    EXPECT_TRUE(run.listener->Wait().status.ok());
    EXPECT_EQ(run.listener->ids(), monolithic.Run(Greedy(run.prompt, 24)));
  }
  EXPECT_TRUE(local->Wait().status.ok());
  EXPECT_TRUE(consumer.ComesBackEmpty());
}

// A landing of zeros: plainly another text. It must never leak into what asks for exact.
TEST(EngineHandoff, ApproximateBlocksServeOnlyThoseWhoAcceptThem) {
  TestEngine consumer, cold;
  const auto prompt = RandomPrompt(300, 6);
  const auto exact = cold.Run(Greedy(prompt, 16));
  auto [handle, listener] = consumer.Start(Consumer(prompt, 128));
  const Admission admission = listener->WaitAdmitted();
  const KvPageLayout& layout = consumer.pool().layout();
  const std::vector<std::byte> zeros(layout.payload_bytes());
  for (const auto& table : admission.landing->pages) {
    for (std::size_t i = 0; i < table.size(); ++i) {
      CopyKvRows(layout, zeros.data(), table[i].data(), i == 0 ? 4 : 0, kPageRows);
    }
  }
  consumer->PublishPrefix(handle);
  listener->Wait();
  listener->DropLanding();
  const auto approximate = listener->ids();
  EXPECT_NE(approximate, exact);

  // Blocks 2 and 3 were computed here, but over an approximate prefix: they inherit it.
  const auto oracle = consumer.Start(Cached(Greedy(prompt, 16))).second;
  EXPECT_EQ(oracle->Wait().cached_tokens, 0);
  EXPECT_EQ(oracle->ids(), exact);

  // Exact blocks are there now and preferred by everybody.
  const auto again = consumer.Start(Consumer(prompt, 128)).second;
  EXPECT_EQ(again->WaitAdmitted().landing, nullptr);
  EXPECT_EQ(again->Wait().cached_tokens, 256);
  EXPECT_EQ(again->ids(), exact);
}

TEST(EngineHandoff, ApproximateBlocksAreReusedByTheSameKind) {
  TestEngine consumer;
  const auto prompt = RandomPrompt(300, 6);
  auto [handle, listener] = consumer.Start(Consumer(prompt, 128));
  {
    const Admission admission = listener->WaitAdmitted();
    for (const auto& table : admission.landing->pages) {
      for (std::size_t i = 0; i < table.size(); ++i) {
        const KvPageLayout& layout = consumer.pool().layout();
        const std::vector<std::byte> zeros(layout.payload_bytes());
        CopyKvRows(layout, zeros.data(), table[i].data(), i == 0 ? 4 : 0, kPageRows);
      }
    }
  }
  listener->DropLanding();
  consumer->PublishPrefix(handle);
  listener->Wait();
  const auto again = consumer.Start(Consumer(prompt, 128)).second;
  EXPECT_EQ(again->WaitAdmitted().landing, nullptr);
  EXPECT_EQ(again->Wait().cached_tokens, 256);
  EXPECT_EQ(again->ids(), listener->ids());
  EXPECT_TRUE(consumer.ComesBackEmpty());
}

TEST(EngineHandoff, LandingBeginsBehindCachedBlocks) {
  TestEngine producer, consumer, monolithic;
  const auto prompt = RandomPrompt(400, 9);
  consumer.Run(Cached(Greedy({prompt.begin(), prompt.begin() + 140}, 2)));  // two exact blocks
  auto [handle, listener] = consumer.Start(Consumer(prompt, 320));
  const Admission admission = listener->WaitAdmitted();
  EXPECT_EQ(admission.cached_tokens, 128);
  ASSERT_NE(admission.landing, nullptr);
  EXPECT_EQ(admission.landing->begin, 128);
  EXPECT_EQ(admission.landing->first_page, 8);
  EngineRequest source_request = Producer(prompt);
  source_request.report_from = 128;
  const auto source = producer.Start(source_request).second;
  source->Wait();
  Fill(consumer, source->TakeKv(), *admission.landing);
  consumer->PublishPrefix(handle);
  const FinishInfo info = listener->Wait();
  EXPECT_EQ(info.transferred_tokens, 192);
  EXPECT_EQ(info.computed_tokens, 80);
  EXPECT_EQ(listener->ids(), monolithic.Run(Greedy(prompt, 16)));
}

TEST(EngineHandoff, AbandonedPrefixIsComputedHere) {
  TestEngine consumer, monolithic;
  for (const bool writer_keeps_landing : {false, true}) {
    const auto prompt = RandomPrompt(300, writer_keeps_landing);
    auto [handle, listener] = consumer.Start(Consumer(prompt, 192));
    std::shared_ptr<PrefixLanding> landing = listener->WaitAdmitted().landing;
    ASSERT_NE(landing, nullptr);
    if (!writer_keeps_landing) {
      landing.reset();
      listener->DropLanding();
    }
    consumer->AbandonPrefix(handle);
    // A late writer goes on scribbling: nobody may see it.
    for (int i = 0; landing != nullptr && i < 20; ++i) {
      for (const auto& table : landing->pages) {
        for (const PageRef& page : table) {
          std::memset(page.data() + 64, 0x7f, consumer.pool().layout().payload_bytes());
        }
      }
      std::this_thread::yield();
    }
    const FinishInfo info = listener->Wait();
    EXPECT_TRUE(info.status.ok());
    EXPECT_EQ(info.transferred_tokens, 0);
    EXPECT_GE(info.computed_tokens, 300);
    EXPECT_EQ(listener->ids(), monolithic.Run(Greedy(prompt, 16)));
    EXPECT_EQ(listener->admissions(), 1);
    // Exact blocks, since nothing came from elsewhere.
    EXPECT_EQ(consumer.Start(Cached(Greedy(prompt, 2))).second->Wait().cached_tokens, 256);
    listener->DropLanding();
  }
  EXPECT_TRUE(consumer.ComesBackEmpty());
}

TEST(EngineHandoff, AbortedLandingKeepsItsPagesUntilReleased) {
  TestEngine consumer;
  auto [handle, listener] = consumer.Start(Consumer(RandomPrompt(300, 3), 192));
  std::shared_ptr<PrefixLanding> landing = listener->WaitAdmitted().landing;
  consumer->Abort(handle, absl::DeadlineExceededError("too late"));
  const FinishInfo info = listener->Wait();
  EXPECT_EQ(info.status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(info.reason, FinishReason::kCancelled);
  listener->DropLanding();
  PagePool::Stats stats = consumer.pool().GetStats();
  EXPECT_EQ(stats.held, TinyPages(192));
  EXPECT_EQ(stats.reserved, 0);
  consumer->PublishPrefix(handle);  // too late: ignored
  landing.reset();
  stats = consumer.pool().GetStats();
  EXPECT_EQ(stats.held, 0);
}

TEST(EngineHandoff, PreemptedAfterLandingIsRecomputedWithoutOne) {
  EngineSetup setup;
  setup.pool_rows = 528;  // three prompts fit, three finished sequences (230 rows) don't
  TestEngine producer, monolithic;
  TestEngine consumer(setup);
  struct Run {
    std::vector<std::int32_t> prompt;
    RequestHandle handle;
    std::shared_ptr<RecordingListener> listener;
  };
  std::vector<Run> runs;
  for (std::uint32_t i = 0; i < 3; ++i) {
    const auto prompt = RandomPrompt(130, 50 + i);
    auto [handle, listener] = consumer.Start(Consumer(prompt, 64, 100));
    runs.push_back({prompt, handle, listener});
  }
  for (Run& run : runs) {
    const Admission admission = run.listener->WaitAdmitted();
    const auto source = producer.Start(Producer(run.prompt)).second;
    source->Wait();
    Fill(consumer, source->TakeKv(), *admission.landing);
    run.listener->DropLanding();
    consumer->PublishPrefix(run.handle);
  }
  for (Run& run : runs) {
    EXPECT_TRUE(run.listener->Wait().status.ok());
    EXPECT_EQ(run.listener->admissions(), 1);
    EXPECT_EQ(run.listener->ids(), monolithic.Run(Greedy(run.prompt, 100)));
  }
  EXPECT_GT(consumer->GetStats().preemptions, 0);
  EXPECT_TRUE(consumer.ComesBackEmpty());
}

// Aborts, publishes and abandons at random moments, short of pages all the time.
TEST(EngineHandoff, TwoHundredAbortsLeaveNothingHeld) {
  EngineSetup setup;
  setup.pool_rows = 900;
  setup.options.step_tokens = 64;
  TestEngine engine(setup);
  std::mt19937 rng(11);
  struct Live {
    RequestHandle handle;
    std::shared_ptr<RecordingListener> listener;
  };
  std::vector<Live> live;
  for (int i = 0; i < 200; ++i) {
    const std::size_t n = 1 + rng() % 300;
    const auto prompt = RandomPrompt(n, rng() % 5);
    EngineRequest request;
    switch (rng() % 4) {
      case 0:
        request = Producer(prompt);
        break;
      case 1:
        request = Cached(Greedy(prompt, 1 + rng() % 80));
        break;
      default:
        request = Consumer(prompt, Shareable(n), 1 + rng() % 80);
    }
    request.priority = static_cast<int>(rng() % 3);
    auto [handle, listener] = engine.Start(request);
    live.push_back({handle, listener});
    usleep(static_cast<useconds_t>(rng() % 3000));
    for (const Live& some : live) {
      switch (rng() % 12) {
        case 0:
          engine->Abort(some.handle, absl::CancelledError("client went away"));
          break;
        case 1:
          engine->PublishPrefix(some.handle);
          break;
        case 2:
          engine->AbandonPrefix(some.handle);
          break;
        case 3:
          some.listener->DropLanding();
          break;
      }
    }
    while (live.size() > 12) {
      engine->Abort(live.front().handle, absl::CancelledError("client went away"));
      live.front().listener->DropLanding();
      live.erase(live.begin());
    }
    // Those that are left alone must not wait for ever.
    if (i % 20 == 19) {
      for (const Live& some : live) {
        engine->AbandonPrefix(some.handle);
        some.listener->DropLanding();
      }
      for (const Live& some : live) {
        some.listener->Wait();
        some.listener->TakeKv();
        EXPECT_EQ(some.listener->finishes(), 1);
      }
      live.clear();
    }
  }
  live.clear();
  EXPECT_TRUE(engine.ComesBackEmpty());
  EXPECT_EQ(engine->GetStats().running, 0);
  EXPECT_EQ(engine->GetStats().waiting, 0);
}

}  // namespace
}  // namespace baton
