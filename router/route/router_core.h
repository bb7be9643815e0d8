// What all calls of one router share: nodes, assets, policies, limits.
#pragma once

#include <atomic>
#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "proto/decode.pb.h"
#include "proto/router.pb.h"
#include "router/route/asset_cache.h"
#include "router/route/executor.h"
#include "router/route/node_health.h"
#include "router/route/policy.h"
#include "router/route/retry_policy.h"
#include "router/route/router_config.h"
#include "router/route/router_metrics.h"

namespace baton {

// A model and the nodes that say they serve it.
struct ModelRoute {
  v1::DecodeModel model;                     // of a usable node where there is one
  std::vector<std::shared_ptr<Node>> nodes;  // any state; each may have a tokenizer of its own
};

struct PrefillChoice {
  std::vector<std::shared_ptr<Node>> nodes;
  std::string why_none;  // where there are none though some are configured
};

// Thread-safe.
class RouterCore {
 public:
  static absl::StatusOr<std::unique_ptr<RouterCore>> Create(const RouterConfig& config,
                                                            const NodeDirectory& directory,
                                                            MetricRegistry registry,
                                                            const Clock& clock, int threads);
  // All calls must be over.
  ~RouterCore();

  // NOT_FOUND names the models there are; an empty name is the only model. UNAVAILABLE when no
  // node has answered yet.
  absl::StatusOr<ModelRoute> Resolve(const std::string& model) const;

  // A node for a decode call. Avoids `tried` as long as there are others.
  // `space`: not empty when a stream goes on: only nodes whose native space has this digest.
  // `suspects`: also take nodes that missed an answer, if there is no better one. Null: none.
  std::shared_ptr<Node> PickDecode(const v1::DecodeModel& model, const std::string& space,
                                   const std::vector<std::shared_ptr<Node>>& tried,
                                   bool suspects) const;

  // Prefill nodes for this model of this decode node, best first: they run its base, their spaces
  // fit as far as the router can tell; those that say they hold the very space the model accepts
  // come before others.
  // `prefix` names the prompt's beginning for the policy that asks for it; empty: it has none.
  PrefillChoice ChoosePrefill(const Node& decode, const v1::DecodeModel& model,
                              const std::string& prefix) const;

  std::vector<v1::ModelInfo> Models() const;
  bool Ready() const;

  // Counts a generation; false when max_inflight are under way.
  bool TryEnter() EXCLUDES(mu_);
  void Leave() EXCLUDES(mu_);
  bool WaitIdle(std::chrono::nanoseconds timeout) EXCLUDES(mu_);
  int inflight() const EXCLUDES(mu_);

  const RouterConfig config;
  const Clock& clock;
  RouterMetrics metrics;
  RetryPolicy retry;
  RouterExecutor executor;
  AssetCache assets;

 private:
  RouterCore(const RouterConfig& config, MetricRegistry& registry, const Clock& clock, int threads);
  void Prefetch(const std::shared_ptr<Node>& node);
  void PollForEver();
  std::vector<size_t> OrderPrefill(const std::vector<std::shared_ptr<Node>>& nodes,
                                   const std::string& base_model, const std::string& prefix) const;
  // As ChoosePrefill, in the directory's order.
  PrefillChoice FittingPrefill(const Node& decode, const v1::DecodeModel& model) const;
  // Empty: requests for the model at this node may use a prefill node, or none are configured.
  std::string WhyNoPrefill(const Node& decode, const v1::DecodeModel& model) const;
  // Says, when it changes, which models get no prefill node and why.
  void CheckPairs() REQUIRES(mu_);

  const std::unique_ptr<Policy> decode_policy_;
  const std::unique_ptr<Policy> prefill_policy_;
  std::unique_ptr<NodeHealth> health_;  // set once by Create; its callbacks use the members above
  mutable Mutex mu_;
  CondVar idle_;
  int inflight_ GUARDED_BY(mu_) = 0;
  bool stopped_ GUARDED_BY(mu_) = false;
  struct PairProblem {
    std::string why;   // now
    std::string said;  // in the log, the latest
  };
  // By address and model; bounded by what the configured nodes serve.
  std::map<std::pair<std::string, std::string>, PairProblem> pair_problems_ GUARDED_BY(mu_);
  std::shared_ptr<RouterExecutor::Timer> poll_timer_ GUARDED_BY(mu_);
};

}  // namespace baton
