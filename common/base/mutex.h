// std::mutex with clang thread-safety annotations. (TSan reports false races on Debian's
// absl::Mutex, so Baton does not use it.)
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

// GUARDED_BY, PT_GUARDED_BY, NO_THREAD_SAFETY_ANALYSIS.
#include "absl/base/thread_annotations.h"

#if defined(__clang__)
#define BATON_ATTR(x) __attribute__((x))
#else
#define BATON_ATTR(x)
#endif
#define REQUIRES(...) BATON_ATTR(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) BATON_ATTR(locks_excluded(__VA_ARGS__))

namespace baton {

class BATON_ATTR(capability("mutex")) Mutex {
 public:
  void Lock() BATON_ATTR(acquire_capability()) { mu_.lock(); }
  void Unlock() BATON_ATTR(release_capability()) { mu_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mu_;
};

class BATON_ATTR(scoped_lockable) MutexLock {
 public:
  explicit MutexLock(Mutex& mu) BATON_ATTR(acquire_capability(mu)) : mu_(mu) { mu_.Lock(); }
  ~MutexLock() BATON_ATTR(release_capability()) { mu_.Unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mu_;
};

// Waits re-check a predicate, so a spurious wake-up is never seen by the caller.
class CondVar {
 public:
  void NotifyOne() { cv_.notify_one(); }
  void NotifyAll() { cv_.notify_all(); }

  template <typename Predicate>
  void Wait(Mutex& mu, Predicate done) REQUIRES(mu) NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    cv_.wait(lock, done);
    lock.release();
  }

  // False when `timeout` passed and `done()` is still false.
  template <typename Predicate>
  bool WaitFor(Mutex& mu, std::chrono::nanoseconds timeout, Predicate done)
      REQUIRES(mu) NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock<std::mutex> lock(mu.mu_, std::adopt_lock);
    const bool ok = cv_.wait_for(lock, timeout, done);
    lock.release();
    return ok;
  }

 private:
  std::condition_variable cv_;
};

}  // namespace baton
