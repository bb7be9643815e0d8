#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <ctime>
#include <thread>
#include <vector>

#include "kernels/executor.h"

namespace baton {
namespace {

TEST(ThreadPool, CoversEveryIndexOnceInWholeGrains) {
  for (int threads : {1, 2, 4}) {
    auto pool = MakeThreadPool(threads);
    EXPECT_EQ(pool->threads(), threads);
    for (std::int64_t n : {0, 1, 5, 16, 100, 1000}) {
      for (std::int64_t grain : {1, 4, 16, 5000}) {
        std::vector<std::atomic<int>> hits(static_cast<std::size_t>(n));
        std::atomic<bool> whole{true};
        pool->ParallelFor(n, grain, [&](std::int64_t b, std::int64_t e) {
          if (b % grain != 0 || (e != n && (e - b) % grain != 0) || e <= b) whole = false;
          for (std::int64_t i = b; i < e; ++i) hits[static_cast<std::size_t>(i)].fetch_add(1);
        });
        EXPECT_TRUE(whole);
        for (const auto& h : hits) EXPECT_EQ(h, 1);
      }
    }
  }
}

TEST(ThreadPool, ManySmallJobsGiveTheRightSum) {
  auto pool = MakeThreadPool(3);
  std::vector<std::int64_t> data(64);
  for (int job = 0; job < 20000; ++job) {
    pool->ParallelFor(64, 1, [&](std::int64_t b, std::int64_t e) {
      for (std::int64_t i = b; i < e; ++i) data[static_cast<std::size_t>(i)] += i;
    });
  }
  for (std::int64_t i = 0; i < 64; ++i) EXPECT_EQ(data[static_cast<std::size_t>(i)], 20000 * i);
}

TEST(ThreadPool, WakesHelpersThatWentToSleep) {
  auto pool = MakeThreadPool(2);
  for (int i = 0; i < 20; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    std::atomic<int> sum{0};
    pool->ParallelFor(10, 1,
                      [&](std::int64_t b, std::int64_t e) { sum += static_cast<int>(e - b); });
    EXPECT_EQ(sum, 10);
  }
}

// Processor time of the calling thread.
double CpuMilliseconds() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return 1e3 * static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_nsec);
}

TEST(ThreadPool, TheCallerSleepsUntilASlowHelperIsDone) {
  using std::chrono::milliseconds;
  auto pool = MakeThreadPool(2);
  const auto caller = std::this_thread::get_id();
  const double before = CpuMilliseconds();
  for (int i = 0; i < 20; ++i) {
    std::atomic<int> started{0};
    std::atomic<int> done{0};
    // Two pieces, one for each thread; the helper's ends long after the caller's.
    pool->ParallelFor(2, 1, [&](std::int64_t, std::int64_t) {
      started.fetch_add(1);
      while (started.load() < 2) std::this_thread::sleep_for(milliseconds(1));
      if (std::this_thread::get_id() != caller) std::this_thread::sleep_for(milliseconds(10));
      done.fetch_add(1);
    });
    EXPECT_EQ(done, 2);
  }
  // Of 200 ms of waiting.
  EXPECT_LT(CpuMilliseconds() - before, 50);
}

TEST(ThreadPool, MoreThreadsThanCoresFinishManyJobs) {
  const int threads = 3 * static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  auto pool = MakeThreadPool(threads);
  std::atomic<std::int64_t> sum{0};
  for (int job = 0; job < 300; ++job) {
    pool->ParallelFor(64, 1, [&](std::int64_t b, std::int64_t e) { sum += e - b; });
  }
  EXPECT_EQ(sum, 300 * 64);
}

TEST(ThreadPool, BothThreadsTakePart) {
  auto pool = MakeThreadPool(2);
  std::atomic<int> started{0};
  // Each piece waits until another thread has started one: ends only if two threads work.
  pool->ParallelFor(2, 1, [&](std::int64_t, std::int64_t) {
    started.fetch_add(1);
    while (started.load() < 2) std::this_thread::yield();
  });
  EXPECT_EQ(started, 2);
}

TEST(ThreadPool, TearsDownIdleAndFreshPools) {
  for (int i = 0; i < 200; ++i) {
    auto pool = MakeThreadPool(3);
    if (i % 2 == 0) pool->ParallelFor(6, 1, [](std::int64_t, std::int64_t) {});
  }
}

}  // namespace
}  // namespace baton
