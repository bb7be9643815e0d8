#include "common/node/worker_pool.h"

#include <atomic>

#include "common/node/ticker.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(StrandTest, TasksOfOneStrandRunInOrderAndAlone) {
  auto pool = std::make_shared<WorkerPool>(4);
  Strand a(pool), b(pool);
  std::vector<int> order;  // unguarded: TSan would tell if two ran at once
  std::atomic<int> others{0};
  for (int i = 0; i < 1000; ++i) {
    a.Post([&order, i] { order.push_back(i); });
    b.Post([&others] { ++others; });
  }
  // A strand's next task is posted by the last one, so wait for both before stopping.
  std::atomic<int> done{0};
  a.Post([&] { ++done; });
  b.Post([&] { ++done; });
  while (done < 2) std::this_thread::yield();
  pool->Stop();
  ASSERT_EQ(order.size(), 1000u);
  for (int i = 0; i < 1000; ++i) EXPECT_EQ(order[i], i);
  EXPECT_EQ(others, 1000);
}

TEST(WorkerPoolTest, LatePostsAreDropped) {
  auto pool = std::make_shared<WorkerPool>(1);
  Strand strand(pool);
  pool->Stop();
  auto held = std::make_shared<int>(1);
  pool->Post([held] { FAIL(); });
  EXPECT_EQ(held.use_count(), 1);
  for (int i = 0; i < 3; ++i) strand.Post([held] { FAIL(); });
  EXPECT_EQ(held.use_count(), 1);
}

TEST(TickerTest, TicksAndStops) {
  std::atomic<int> ticks{0};
  {
    Ticker ticker(std::chrono::milliseconds(1), [&] { ++ticks; });
    while (ticks < 3) std::this_thread::yield();
  }
  const int after = ticks;
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(ticks, after);
}

}  // namespace
}  // namespace baton
