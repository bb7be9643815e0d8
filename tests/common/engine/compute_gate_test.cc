#include "common/engine/compute_gate.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(ComputeGate, OneAtATimeAndFair) {
  ComputeGate gate;
  int inside = 0;  // unguarded on purpose: only the gate protects it
  std::vector<int> turns(3, 0);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      while (!stop) {
        ComputeGate::Turn turn(gate);
        ASSERT_EQ(++inside, 1);
        ++turns[static_cast<std::size_t>(t)];
        std::this_thread::sleep_for(std::chrono::microseconds(200));
        --inside;
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  stop = true;
  for (auto& thread : threads) thread.join();
  // Everybody who always asks gets the same number of turns, but for the start.
  const auto [low, high] = std::minmax_element(turns.begin(), turns.end());
  EXPECT_GT(*low, 10);
  EXPECT_LT(*high - *low, *high / 4 + 10);
}

}  // namespace
}  // namespace baton
