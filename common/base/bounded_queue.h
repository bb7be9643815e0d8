// A bounded blocking queue for many producers and consumers. Close() wakes everybody: pushes fail
// from then on, pops still drain what is there.
#pragma once

#include <chrono>
#include <cstddef>
#include <deque>
#include <optional>
#include <utility>

#include "common/base/mutex.h"

namespace baton {

template <typename T>
class BoundedQueue {
 public:
  // `capacity` >= 1 (0 counts as 1).
  explicit BoundedQueue(size_t capacity) : capacity_(capacity == 0 ? 1 : capacity) {}
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // Never waits. False when full or closed; `item` is then untouched.
  bool TryPush(T&& item) EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      if (closed_ || items_.size() >= capacity_) return false;
      items_.push_back(std::move(item));
    }
    not_empty_.NotifyOne();
    return true;
  }
  bool TryPush(const T& item) EXCLUDES(mu_) { return TryPush(T(item)); }

  // Waits for room. False when closed.
  bool Push(T item) EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      not_full_.Wait(mu_, [this]() REQUIRES(mu_) { return closed_ || items_.size() < capacity_; });
      if (closed_) return false;
      items_.push_back(std::move(item));
    }
    not_empty_.NotifyOne();
    return true;
  }

  // Waits for an item. nullopt when closed and empty.
  std::optional<T> Pop() EXCLUDES(mu_) {
    std::optional<T> item;
    {
      MutexLock lock(mu_);
      not_empty_.Wait(mu_, [this]() REQUIRES(mu_) { return closed_ || !items_.empty(); });
      if (items_.empty()) return std::nullopt;
      item.emplace(std::move(items_.front()));
      items_.pop_front();
    }
    not_full_.NotifyOne();
    return item;
  }

  // As Pop; nullopt also when `timeout` passed (tell them apart by closed()).
  std::optional<T> PopFor(std::chrono::nanoseconds timeout) EXCLUDES(mu_) {
    std::optional<T> item;
    {
      MutexLock lock(mu_);
      not_empty_.WaitFor(mu_, timeout,
                         [this]() REQUIRES(mu_) { return closed_ || !items_.empty(); });
      if (items_.empty()) return std::nullopt;
      item.emplace(std::move(items_.front()));
      items_.pop_front();
    }
    not_full_.NotifyOne();
    return item;
  }
  std::optional<T> TryPop() EXCLUDES(mu_) { return PopFor(std::chrono::nanoseconds(0)); }

  void Close() EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      closed_ = true;
    }
    not_empty_.NotifyAll();
    not_full_.NotifyAll();
  }

  bool closed() const EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return closed_;
  }
  size_t size() const EXCLUDES(mu_) {
    MutexLock lock(mu_);
    return items_.size();
  }
  size_t capacity() const { return capacity_; }

 private:
  const size_t capacity_;
  mutable Mutex mu_;
  CondVar not_empty_;
  CondVar not_full_;
  std::deque<T> items_ GUARDED_BY(mu_);
  bool closed_ GUARDED_BY(mu_) = false;
};

}  // namespace baton
