#include "common/base/bounded_queue.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

namespace baton {
namespace {

using std::chrono::milliseconds;

TEST(BoundedQueueTest, FirstInFirstOut) {
  BoundedQueue<int> queue(3);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(queue.TryPush(i));
  EXPECT_EQ(queue.size(), 3u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(queue.Pop(), i);
  EXPECT_EQ(queue.TryPop(), std::nullopt);
}

TEST(BoundedQueueTest, TryPushWhenFullLeavesTheItem) {
  BoundedQueue<std::unique_ptr<int>> queue(1);
  EXPECT_TRUE(queue.TryPush(std::make_unique<int>(1)));
  auto item = std::make_unique<int>(2);
  EXPECT_FALSE(queue.TryPush(std::move(item)));
  ASSERT_NE(item, nullptr);
  EXPECT_EQ(*item, 2);
}

TEST(BoundedQueueTest, CapacityIsAtLeastOne) {
  BoundedQueue<int> queue(0);
  EXPECT_EQ(queue.capacity(), 1u);
  EXPECT_TRUE(queue.TryPush(1));
}

TEST(BoundedQueueTest, PopForGivesUp) {
  BoundedQueue<int> queue(1);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(queue.PopFor(milliseconds(20)), std::nullopt);
  EXPECT_GE(std::chrono::steady_clock::now() - start, milliseconds(20));
  EXPECT_FALSE(queue.closed());
}

TEST(BoundedQueueTest, CloseDrainsThenEnds) {
  BoundedQueue<int> queue(4);
  queue.TryPush(1);
  queue.TryPush(2);
  queue.Close();
  EXPECT_FALSE(queue.TryPush(3));
  EXPECT_FALSE(queue.Push(3));
  EXPECT_EQ(queue.Pop(), 1);
  EXPECT_EQ(queue.PopFor(milliseconds(1)), 2);
  EXPECT_EQ(queue.Pop(), std::nullopt);
  queue.Close();
}

TEST(BoundedQueueTest, CloseWakesWaiters) {
  BoundedQueue<int> empty(1);
  BoundedQueue<int> full(1);
  full.TryPush(1);
  std::thread popper([&] { EXPECT_EQ(empty.Pop(), std::nullopt); });
  std::thread pusher([&] { EXPECT_FALSE(full.Push(2)); });
  std::this_thread::sleep_for(milliseconds(20));
  empty.Close();
  full.Close();
  popper.join();
  pusher.join();
}

TEST(BoundedQueueTest, EveryItemOnceThroughManyThreads) {
  constexpr int kThreads = 4;
  constexpr int kItems = 5000;
  BoundedQueue<int> queue(7);
  std::vector<std::atomic<int>> seen(kThreads * kItems);
  std::vector<std::thread> producers;
  std::vector<std::thread> consumers;
  for (int t = 0; t < kThreads; ++t) {
    producers.emplace_back([&, t] {
      for (int i = 0; i < kItems; ++i) ASSERT_TRUE(queue.Push(t * kItems + i));
    });
    consumers.emplace_back([&] {
      while (auto item = queue.Pop()) seen[*item].fetch_add(1);
    });
  }
  for (std::thread& thread : producers) thread.join();
  queue.Close();
  for (std::thread& thread : consumers) thread.join();
  for (const auto& count : seen) ASSERT_EQ(count.load(), 1);
}

}  // namespace
}  // namespace baton
