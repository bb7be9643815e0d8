#include "common/base/cancellation.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

namespace baton {
namespace {

using std::chrono::milliseconds;

TEST(CancellationTest, FirstReasonWins) {
  CancellationSource source;
  const CancellationToken token = source.token();
  EXPECT_FALSE(token.cancelled());
  EXPECT_TRUE(token.status().ok());
  EXPECT_TRUE(source.Cancel(absl::DeadlineExceededError("late")));
  EXPECT_FALSE(source.Cancel(absl::CancelledError("again")));
  EXPECT_TRUE(token.cancelled());
  EXPECT_EQ(token.status(), absl::DeadlineExceededError("late"));
}

TEST(CancellationTest, OkReasonBecomesCancelled) {
  CancellationSource source;
  source.Cancel(absl::OkStatus());
  EXPECT_EQ(source.token().status().code(), absl::StatusCode::kCancelled);
}

TEST(CancellationTest, DefaultTokenIsNeverCancelled) {
  const CancellationToken token;
  EXPECT_FALSE(token.cancelled());
  EXPECT_FALSE(token.WaitFor(milliseconds(1)));
  const auto registration = token.OnCancel([](const absl::Status&) { FAIL(); });
}

TEST(CancellationTest, CallbacksRunOnceWithTheReason) {
  CancellationSource source;
  int calls = 0;
  const auto registration = source.token().OnCancel([&](const absl::Status& reason) {
    ++calls;
    EXPECT_EQ(reason.message(), "why");
    EXPECT_TRUE(source.cancelled());
  });
  source.Cancel(absl::AbortedError("why"));
  source.Cancel();
  EXPECT_EQ(calls, 1);
}

TEST(CancellationTest, LateCallbackRunsAtOnce) {
  CancellationSource source;
  source.Cancel();
  bool called = false;
  const auto registration = source.token().OnCancel([&](const absl::Status&) { called = true; });
  EXPECT_TRUE(called);
}

TEST(CancellationTest, DroppedRegistrationDoesNotRun) {
  CancellationSource source;
  bool called = false;
  {
    auto a = source.token().OnCancel([&](const absl::Status&) { called = true; });
    auto b = std::move(a);
    a = CancellationToken::Registration();
  }
  source.Cancel();
  EXPECT_FALSE(called);
}

TEST(CancellationTest, TokenOutlivesItsSource) {
  CancellationToken token;
  {
    CancellationSource source;
    token = source.token();
  }
  EXPECT_FALSE(token.cancelled());
}

TEST(CancellationTest, ParentCancelsChildNotTheReverse) {
  CancellationSource parent;
  CancellationSource child(parent.token());
  CancellationSource other(parent.token());
  child.Cancel();
  EXPECT_FALSE(parent.cancelled());
  parent.Cancel(absl::UnavailableError("gone"));
  EXPECT_EQ(other.token().status(), absl::UnavailableError("gone"));
  EXPECT_EQ(child.token().status().code(), absl::StatusCode::kCancelled);
  CancellationSource late(parent.token());
  EXPECT_TRUE(late.cancelled());
}

TEST(CancellationTest, CallbackMayDropItselfAndItsSource) {
  auto source = std::make_unique<CancellationSource>();
  std::optional<CancellationToken::Registration> registration;
  registration = source->token().OnCancel([&](const absl::Status&) {
    registration.reset();
    source.reset();
  });
  source->Cancel();
  EXPECT_EQ(source, nullptr);
}

TEST(CancellationTest, ResetWaitsForARunningCallback) {
  CancellationSource source;
  std::atomic<bool> started{false};
  auto value = std::make_unique<int>(0);
  auto registration = source.token().OnCancel([&](const absl::Status&) {
    started = true;
    std::this_thread::sleep_for(milliseconds(30));
    *value = 1;  // a use after free, if Reset did not wait
  });
  std::thread canceller([&] { source.Cancel(); });
  while (!started) std::this_thread::yield();
  registration.Reset();
  EXPECT_EQ(*value, 1);
  value.reset();
  canceller.join();
}

TEST(CancellationTest, WaitForWakes) {
  CancellationSource source;
  EXPECT_FALSE(source.token().WaitFor(milliseconds(5)));
  std::thread canceller([&] {
    std::this_thread::sleep_for(milliseconds(20));
    source.Cancel();
  });
  EXPECT_TRUE(source.token().WaitFor(std::chrono::seconds(30)));
  canceller.join();
}

TEST(CancellationTest, RegisterAndCancelRace) {
  for (int round = 0; round < 200; ++round) {
    CancellationSource source;
    std::atomic<int> calls{0};
    std::vector<std::thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        auto kept = source.token().OnCancel([&](const absl::Status&) { calls.fetch_add(1); });
        auto dropped = source.token().OnCancel([](const absl::Status&) {});
        dropped.Reset();
        source.token().WaitFor(std::chrono::seconds(30));
        while (calls.load() < 3) std::this_thread::yield();
      });
    }
    source.Cancel();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(calls.load(), 3);
  }
}

}  // namespace
}  // namespace baton
