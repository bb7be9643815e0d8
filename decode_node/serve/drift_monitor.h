// How far answers over decoded prefixes are from the model's own, on live traffic: a share of the
// requests that codes served is replayed over the model's own prefill, at the lowest priority, and
// both predictions of the generated tokens are compared.
//
//   baton_drift_kl_nats{model}                  KL(own || served) of each token
//   baton_drift_tokens_total{model}             tokens compared
//   baton_drift_top1_same_tokens_total{model}   with the same likeliest token
//   baton_drift_replays_total{model, outcome}   "ok", "failed", "busy" (one at a time is replayed)
//
// Both sides name their 20 likeliest tokens; all others are one bucket, so the KL is a lower bound.
// Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <random>
#include <vector>

#include "common/base/mutex.h"
#include "common/engine/request.h"
#include "common/metrics/metrics.h"
#include "common/node/model_host.h"

namespace baton {

// Of one generated token, the chosen one first (see TokenDelta::logprobs).
using TokenPrediction = std::vector<TokenLogprobEntry>;

// KL(own || served) in nats over the ids that both name and one bucket for the rest; not below 0.
double BucketKl(const TokenPrediction& own, const TokenPrediction& served);
// Whether both name the same token as the likeliest.
bool SameTop(const TokenPrediction& own, const TokenPrediction& served);

class DriftMonitor : public std::enable_shared_from_this<DriftMonitor> {
 public:
  // Likeliest tokens that a watched request must report of each token.
  static constexpr int kTop = 20;

  // `share` of requests in [0, 1].
  DriftMonitor(double share, MetricRegistry& metrics, std::uint64_t seed);

  // Whether to watch the next request that codes serve.
  bool Sample() EXCLUDES(mu_);

  // What was asked and answered: `tokens` is the prompt and then one token for each of `served`.
  struct Answer {
    std::vector<std::int32_t> tokens;
    int adapter = -1;
    std::vector<TokenPrediction> served;
  };
  // Returns at once. The model's engine must outlive the monitor's work in it.
  void Replay(const HostedModel& model, Answer answer);

 private:
  class Listener;
  void Compare(const std::string& model, const std::vector<TokenPrediction>& own,
               const std::vector<TokenPrediction>& served);
  void End(const std::string& model, const char* outcome);

  const double share_;
  HistogramFamily kl_;
  CounterFamily tokens_;
  CounterFamily same_;
  CounterFamily replays_;
  std::atomic<bool> busy_{false};
  Mutex mu_;
  std::mt19937_64 random_ GUARDED_BY(mu_);
};

}  // namespace baton
