// The router's own threads: tokenising, and everything that waits.
#pragma once

#include <chrono>
#include <functional>
#include <memory>

namespace baton {

// Thread-safe. The destructor drops what has not started and joins, so it must not run on one of
// the executor's threads.
class RouterExecutor {
 public:
  // A task that waits for its time.
  class Timer {
   public:
    virtual ~Timer() = default;
    // Runs the task now (with `cancelled` true) if it has not started. Any thread.
    virtual void Cancel() = 0;
  };

  explicit RouterExecutor(int threads);
  ~RouterExecutor();
  RouterExecutor(const RouterExecutor&) = delete;
  RouterExecutor& operator=(const RouterExecutor&) = delete;

  void Post(std::function<void()> task);
  // Dropping the handle changes nothing.
  std::shared_ptr<Timer> After(std::chrono::nanoseconds delay,
                               std::function<void(bool cancelled)> task);

 private:
  class Impl;
  const std::unique_ptr<Impl> impl_;
};

}  // namespace baton
