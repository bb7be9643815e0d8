// Stops sending to a node whose calls fail one after the other. Refusals of a request (bad
// argument, queue full, ...) prove that the node works, so they never open it.
#pragma once

#include <chrono>

#include "absl/status/status.h"

namespace baton {

// True for statuses that speak against the node, not against the request.
bool IsNodeFailure(absl::StatusCode code);

// Not thread-safe: the node's lock guards it. `now` is a steady clock's reading.
class CircuitBreaker {
 public:
  CircuitBreaker(int failures, std::chrono::nanoseconds open_for)
      : failures_to_open_(failures), open_for_(open_for) {}

  // Would a call be let through? Changes nothing.
  bool Allows(std::chrono::nanoseconds now) const;
  // A call starts; an open breaker whose time has passed is half open from now on and lets no
  // second call through until this one has ended (or another `open_for` has passed).
  void OnStart(std::chrono::nanoseconds now);
  void OnEnd(absl::StatusCode code, std::chrono::nanoseconds now);
  void Reset();
  bool open() const { return open_; }

 private:
  const int failures_to_open_;
  const std::chrono::nanoseconds open_for_;
  int failures_ = 0;
  bool open_ = false;
  std::chrono::nanoseconds next_try_{0};
};

}  // namespace baton
