// Threads for work that must not run on the engine's, gRPC's or the transport's, and strands that
// keep some of it in order.
//
//   auto pool = std::make_shared<WorkerPool>(2);
//   Strand strand(pool);
//   strand.Post([] { ... });   // tasks of one strand run one at a time, in order
//   pool->Stop();              // later posts (of callbacks that come late) are dropped
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/mutex.h"

namespace baton {

// Thread-safe. Tasks never fail and should not block for long.
class WorkerPool {
 public:
  explicit WorkerPool(int threads);
  // Stop must have returned if a task could hold the last reference.
  ~WorkerPool() { Stop(); }
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // False after Stop: the task is dropped.
  bool Post(std::function<void()> task) EXCLUDES(mu_);
  // Runs what was posted, then joins. Not from a task. Idempotent.
  void Stop() EXCLUDES(mu_);

 private:
  void Run();

  Mutex mu_;
  CondVar changed_;
  std::deque<std::function<void()>> tasks_ GUARDED_BY(mu_);
  bool stop_ GUARDED_BY(mu_) = false;
  std::vector<std::thread> threads_;
};

// Copies share one order.
class Strand {
 public:
  explicit Strand(std::shared_ptr<WorkerPool> pool)
      : state_(std::make_shared<State>(std::move(pool))) {}
  void Post(std::function<void()> task);

 private:
  struct State {
    explicit State(std::shared_ptr<WorkerPool> p) : pool(std::move(p)) {}
    const std::shared_ptr<WorkerPool> pool;
    Mutex mu;
    std::deque<std::function<void()>> tasks GUARDED_BY(mu);
    bool scheduled GUARDED_BY(mu) = false;
  };
  static void RunOne(const std::shared_ptr<State>& state);
  std::shared_ptr<State> state_;
};

}  // namespace baton
