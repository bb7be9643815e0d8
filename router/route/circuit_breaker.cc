#include "router/route/circuit_breaker.h"

namespace baton {

bool IsNodeFailure(absl::StatusCode code) {
  return code == absl::StatusCode::kUnavailable || code == absl::StatusCode::kInternal ||
         code == absl::StatusCode::kUnknown || code == absl::StatusCode::kDataLoss;
}

bool CircuitBreaker::Allows(std::chrono::nanoseconds now) const {
  return !open_ || now >= next_try_;
}

void CircuitBreaker::OnStart(std::chrono::nanoseconds now) {
  if (open_) next_try_ = now + open_for_;
}

void CircuitBreaker::OnEnd(absl::StatusCode code, std::chrono::nanoseconds now) {
  // A cancelled call or one whose deadline passed says nothing either way.
  if (code == absl::StatusCode::kCancelled || code == absl::StatusCode::kDeadlineExceeded) return;
  if (!IsNodeFailure(code)) return Reset();
  if (++failures_ >= failures_to_open_) {
    open_ = true;
    next_try_ = now + open_for_;
  }
}

void CircuitBreaker::Reset() {
  failures_ = 0;
  open_ = false;
}

}  // namespace baton
