// At most one engine of a process computes at a time: engines that fight over the same cores slow
// each other down by far more than half. First come, first served; whoever has nothing to do does
// not ask.
//
//   ComputeGate::Turn turn(gate);   // waits
//   Step();
//
// Thread-safe.
#pragma once

#include <cstdint>

#include "common/base/mutex.h"

namespace baton {

class ComputeGate {
 public:
  class [[nodiscard]] Turn {
   public:
    explicit Turn(ComputeGate& gate) : gate_(gate) { gate_.Enter(); }
    ~Turn() { gate_.Leave(); }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    ComputeGate& gate_;
  };

  ComputeGate() = default;
  ComputeGate(const ComputeGate&) = delete;
  ComputeGate& operator=(const ComputeGate&) = delete;

 private:
  void Enter() EXCLUDES(mu_) {
    MutexLock lock(mu_);
    const std::uint64_t ticket = next_ticket_++;
    turn_.Wait(mu_, [&]() REQUIRES(mu_) { return serving_ == ticket; });
  }
  void Leave() EXCLUDES(mu_) {
    {
      MutexLock lock(mu_);
      ++serving_;
    }
    turn_.NotifyAll();
  }

  Mutex mu_;
  CondVar turn_;
  std::uint64_t next_ticket_ GUARDED_BY(mu_) = 0;
  std::uint64_t serving_ GUARDED_BY(mu_) = 0;
};

}  // namespace baton
