#include "router/route/retry_policy.h"

#include <algorithm>

namespace baton {

bool IsRetryableElsewhere(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kUnavailable:
    case absl::StatusCode::kAborted:
    case absl::StatusCode::kUnknown:    // gRPC: "Stream removed"
    case absl::StatusCode::kCancelled:  // by the node: it is shutting down
      return true;
    default:
      return false;
  }
}

RetryPolicy::RetryPolicy(const RetryConfig& config, uint64_t seed)
    : config_(config), tokens_(config.budget_reserve), random_(seed) {}

void RetryPolicy::OnRequest() {
  MutexLock lock(mu_);
  tokens_ = std::min(tokens_ + config_.budget_ratio,
                     std::max<double>(config_.budget_reserve, config_.budget_ratio));
}

bool RetryPolicy::TryTake() {
  MutexLock lock(mu_);
  if (tokens_ < 1) return false;
  tokens_ -= 1;
  return true;
}

std::chrono::milliseconds RetryPolicy::Backoff(int attempt) {
  const int doublings = std::clamp(attempt - 2, 0, 20);
  const int64_t full =
      std::min<int64_t>(config_.max_backoff.count(), config_.backoff.count() << doublings);
  MutexLock lock(mu_);
  return std::chrono::milliseconds(full / 2 + static_cast<int64_t>(random_() % (full / 2 + 1)));
}

}  // namespace baton
