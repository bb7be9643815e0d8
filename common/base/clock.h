// The one seam to time. Code that waits or measures takes a Clock&; tests pass a ManualClock.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace baton {

inline double Seconds(std::chrono::nanoseconds d) {
  return std::chrono::duration<double>(d).count();
}

class Clock {
 public:
  virtual ~Clock() = default;

  // Steady time since an arbitrary origin; never goes back. Thread-safe.
  virtual std::chrono::nanoseconds Now() const = 0;

  double NowSeconds() const { return Seconds(Now()); }

  // The machine's steady clock; lives for ever.
  static const Clock& Real();
};

// Stands still until told otherwise. Thread-safe.
class ManualClock : public Clock {
 public:
  explicit ManualClock(std::chrono::nanoseconds start = std::chrono::seconds(1))
      : now_ns_(start.count()) {}
  std::chrono::nanoseconds Now() const override {
    return std::chrono::nanoseconds(now_ns_.load(std::memory_order_acquire));
  }
  void Advance(std::chrono::nanoseconds by) {
    now_ns_.fetch_add(by.count(), std::memory_order_acq_rel);
  }

 private:
  std::atomic<int64_t> now_ns_;
};

}  // namespace baton
