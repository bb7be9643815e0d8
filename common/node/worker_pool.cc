#include "common/node/worker_pool.h"

#include <algorithm>

namespace baton {

WorkerPool::WorkerPool(int threads) {
  for (int i = 0; i < std::max(1, threads); ++i) threads_.emplace_back([this] { Run(); });
}

void WorkerPool::Stop() {
  {
    MutexLock lock(mu_);
    stop_ = true;
  }
  changed_.NotifyAll();
  for (std::thread& t : threads_) {
    if (t.joinable()) t.join();
  }
}

bool WorkerPool::Post(std::function<void()> task) {
  {
    MutexLock lock(mu_);
    if (stop_) return false;
    tasks_.push_back(std::move(task));
  }
  changed_.NotifyOne();
  return true;
}

void WorkerPool::Run() {
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(mu_);
      changed_.Wait(mu_, [this]() REQUIRES(mu_) { return stop_ || !tasks_.empty(); });
      if (tasks_.empty()) return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

void Strand::Post(std::function<void()> task) {
  {
    MutexLock lock(state_->mu);
    state_->tasks.push_back(std::move(task));
    if (state_->scheduled) return;
    state_->scheduled = true;
  }
  if (state_->pool->Post([state = state_] { RunOne(state); })) return;
  std::deque<std::function<void()>> dropped;  // tasks may own the strand
  MutexLock lock(state_->mu);
  state_->scheduled = false;  // later posts must find out too, and not pile up
  dropped.swap(state_->tasks);
}

void Strand::RunOne(const std::shared_ptr<State>& state) {
  for (;;) {
    std::function<void()> task;
    {
      MutexLock lock(state->mu);
      task = std::move(state->tasks.front());
      state->tasks.pop_front();
    }
    task();
    task = nullptr;  // what it captured goes before the next task may run
    {
      MutexLock lock(state->mu);
      if (state->tasks.empty()) {
        state->scheduled = false;
        return;
      }
    }
    // One task at a time, so that strands share the pool fairly; what was posted before the pool
    // stopped still runs.
    if (state->pool->Post([state] { RunOne(state); })) return;
  }
}

}  // namespace baton
