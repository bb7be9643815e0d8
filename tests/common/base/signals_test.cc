#include "common/base/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <thread>

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(ShutdownSignalTest, TermEndsTheWait) {
  auto shutdown = ShutdownSignal::Install();
  ASSERT_TRUE(shutdown.ok()) << shutdown.status();
  EXPECT_FALSE((*shutdown)->WaitFor(milliseconds(5)));
  EXPECT_FALSE((*shutdown)->token().cancelled());
  kill(getpid(), SIGTERM);
  EXPECT_EQ((*shutdown)->Wait(), SIGTERM);
  EXPECT_TRUE((*shutdown)->token().WaitFor(seconds(10)));
}

TEST(ShutdownSignalTest, RequestFromInside) {
  auto shutdown = ShutdownSignal::Install();
  ASSERT_TRUE(shutdown.ok());
  std::thread asker([&] { (*shutdown)->Request(); });
  EXPECT_EQ((*shutdown)->Wait(), 0);
  asker.join();
  (*shutdown)->Request();
}

TEST(ShutdownSignalTest, HupCallsBackAndDoesNotEnd) {
  auto shutdown = ShutdownSignal::Install();
  ASSERT_TRUE(shutdown.ok());
  kill(getpid(), SIGHUP);  // nobody listens: ignored
  std::atomic<int> reloads{0};
  (*shutdown)->OnHup([&] { ++reloads; });
  for (int i = 1; i <= 3; ++i) {
    kill(getpid(), SIGHUP);
    const auto deadline = std::chrono::steady_clock::now() + seconds(10);
    while (reloads < i && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    EXPECT_GE(reloads, i);
  }
  EXPECT_FALSE((*shutdown)->WaitFor(milliseconds(5)));
}

TEST(ShutdownSignalTest, ReplacingTheHupCallbackWaitsForItsRun) {
  auto shutdown = ShutdownSignal::Install();
  ASSERT_TRUE(shutdown.ok());
  std::atomic<bool> entered{false};
  bool left = false;  // not atomic: TSan sees whether OnHup orders the two threads
  (*shutdown)->OnHup([&] {
    entered = true;
    std::this_thread::sleep_for(milliseconds(50));
    left = true;
  });
  kill(getpid(), SIGHUP);
  while (!entered) std::this_thread::sleep_for(milliseconds(1));
  (*shutdown)->OnHup(nullptr);
  EXPECT_TRUE(left);
}

TEST(ShutdownSignalTest, AHupCallbackMayReplaceItself) {
  auto shutdown = ShutdownSignal::Install();
  ASSERT_TRUE(shutdown.ok());
  (*shutdown)->OnHup([&] {
    (*shutdown)->OnHup(nullptr);
    (*shutdown)->Request();
  });
  kill(getpid(), SIGHUP);
  EXPECT_EQ((*shutdown)->Wait(), 0);
}

TEST(ShutdownSignalTest, UnblocksOnlyWhatItBlocked) {
  sigset_t hup;
  sigemptyset(&hup);
  sigaddset(&hup, SIGHUP);
  ASSERT_EQ(pthread_sigmask(SIG_BLOCK, &hup, nullptr), 0);
  {
    auto shutdown = ShutdownSignal::Install();
    ASSERT_TRUE(shutdown.ok());
  }
  sigset_t now;
  ASSERT_EQ(pthread_sigmask(SIG_UNBLOCK, &hup, &now), 0);
  EXPECT_EQ(sigismember(&now, SIGHUP), 1);
  EXPECT_EQ(sigismember(&now, SIGTERM), 0);
}

TEST(ShutdownSignalTest, MayBeInstalledAgain) {
  for (int i = 0; i < 20; ++i) {
    auto shutdown = ShutdownSignal::Install();
    ASSERT_TRUE(shutdown.ok());
  }
}

TEST(ShutdownSignalDeathTest, SecondInterruptLeavesAtOnce) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        auto shutdown = ShutdownSignal::Install();
        kill(getpid(), SIGINT);
        (*shutdown)->Wait();
        kill(getpid(), SIGINT);
        std::this_thread::sleep_for(seconds(20));
      },
      testing::ExitedWithCode(128 + SIGINT), "second");
}

}  // namespace
}  // namespace baton
