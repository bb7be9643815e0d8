// When a failed decode call may be tried again, and how long to wait before.
#pragma once

#include <chrono>
#include <cstdint>
#include <random>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "router/route/router_config.h"

namespace baton {

// True when another node, or the same one after a restart, may do better. A
// bad request is bad everywhere, and a full queue is the client's to wait for: never retried.
bool IsRetryableElsewhere(absl::StatusCode code);

// Keeps retries from multiplying an outage: each request pays in a fraction of a retry, each retry
// takes a whole one. Thread-safe.
class RetryPolicy {
 public:
  explicit RetryPolicy(const RetryConfig& config, uint64_t seed = std::random_device{}());

  int max_attempts() const { return config_.max_attempts; }
  void OnRequest() EXCLUDES(mu_);
  // Takes one retry out of the budget; false when it is spent.
  bool TryTake() EXCLUDES(mu_);
  // Before attempt `attempt` (2 is the first retry): exponential, half of it random.
  std::chrono::milliseconds Backoff(int attempt) EXCLUDES(mu_);

 private:
  const RetryConfig config_;
  Mutex mu_;
  double tokens_ GUARDED_BY(mu_);
  std::mt19937_64 random_ GUARDED_BY(mu_);
};

}  // namespace baton
