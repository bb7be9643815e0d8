// A thread that calls a function at an interval: the reaper's clock, independent of engines, gRPC
// and the transport.
#pragma once

#include <chrono>
#include <functional>
#include <thread>

#include "common/base/mutex.h"

namespace baton {

class Ticker {
 public:
  Ticker(std::chrono::milliseconds interval, std::function<void()> tick);
  // Joins; the function is not called afterwards.
  ~Ticker();
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

 private:
  const std::chrono::milliseconds interval_;
  const std::function<void()> tick_;
  Mutex mu_;
  CondVar changed_;
  bool stop_ GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace baton
