// The nodes as the router sees them: reachable or not, what they serve, how loaded they are.
//
// Every node is asked for Info once per interval, asynchronously. ACTIVE -> SUSPECT at the first
// missed answer or failed call, -> GONE after `gone_after` missed answers; one answer makes a node
// ACTIVE again. A new incarnation resets what was held against the old one.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/metrics/metrics.h"
#include "common/rpc/channel.h"
#include "proto/decode.grpc.pb.h"
#include "proto/prefill.grpc.pb.h"
#include "router/discovery/node_directory.h"
#include "router/route/circuit_breaker.h"
#include "router/route/router_config.h"

namespace baton {

enum class NodeState { kActive, kSuspect, kGone };
std::string_view NodeStateName(NodeState state);

// One node. Thread-safe.
class Node {
 public:
  Node(NodeEntry entry, std::shared_ptr<grpc::Channel> channel, const HealthConfig& config,
       const Clock& clock);

  const std::string& address() const { return entry_.address; }
  NodeRole role() const { return entry_.role; }
  v1::Decode::Stub& decode() const { return *decode_; }
  v1::Prefill::Stub& prefill() const { return *prefill_; }

  NodeState state() const EXCLUDES(mu_);
  bool draining() const EXCLUDES(mu_);
  // The last answer; null before the first. Of the node's own role only.
  std::shared_ptr<const v1::DecodeInfo> decode_info() const EXCLUDES(mu_);
  std::shared_ptr<const v1::PrefillInfo> prefill_info() const EXCLUDES(mu_);

  // May new work be sent? `suspects`: also to a node that missed an answer.
  bool Usable(bool suspects) const EXCLUDES(mu_);
  // This router's requests there, plus what the last answer showed of others'.
  int64_t Load() const EXCLUDES(mu_);
  int64_t inflight() const { return inflight_.load(); }

  void OnCallStart() EXCLUDES(mu_);
  void OnCallEnd(const absl::Status& status) EXCLUDES(mu_);

 private:
  friend class NodeHealth;
  friend class NodeLease;

  void OnInfo(std::shared_ptr<const v1::DecodeInfo> decode,
              std::shared_ptr<const v1::PrefillInfo> prefill) EXCLUDES(mu_);
  void OnMissed(const absl::Status& status) EXCLUDES(mu_);
  void SetState(NodeState state, std::string_view why) REQUIRES(mu_);

  const NodeEntry entry_;
  const HealthConfig config_;
  const Clock& clock_;
  const std::unique_ptr<v1::Decode::Stub> decode_;
  const std::unique_ptr<v1::Prefill::Stub> prefill_;
  std::atomic<int64_t> inflight_{0};
  std::atomic<bool> polling_{false};

  mutable Mutex mu_;
  NodeState state_ GUARDED_BY(mu_) = NodeState::kGone;
  int missed_ GUARDED_BY(mu_) = 0;
  uint64_t incarnation_ GUARDED_BY(mu_) = 0;
  int64_t others_load_ GUARDED_BY(mu_) = 0;
  bool draining_ GUARDED_BY(mu_) = false;
  bool missed_logged_ GUARDED_BY(mu_) = false;
  CircuitBreaker breaker_ GUARDED_BY(mu_);
  std::shared_ptr<const v1::DecodeInfo> decode_info_ GUARDED_BY(mu_);
  std::shared_ptr<const v1::PrefillInfo> prefill_info_ GUARDED_BY(mu_);
};

// Counts one request at a node for as long as it lives.
class NodeLease {
 public:
  NodeLease() = default;
  explicit NodeLease(std::shared_ptr<Node> node) : node_(std::move(node)) {
    node_->inflight_.fetch_add(1);
  }
  NodeLease(NodeLease&& other) noexcept = default;
  NodeLease& operator=(NodeLease&& other) noexcept {
    Reset();
    node_ = std::move(other.node_);
    return *this;
  }
  ~NodeLease() { Reset(); }
  void Reset() {
    if (node_) node_->inflight_.fetch_sub(1);
    node_.reset();
  }

 private:
  std::shared_ptr<Node> node_;
};

struct NodeHealthOptions {
  HealthConfig health;
  ChannelOptions channel;
};

// Thread-safe.
class NodeHealth {
 public:
  // Called after each answer of a decode node, on a gRPC thread; must not block.
  using OnDecodeInfo = std::function<void(const std::shared_ptr<Node>& node)>;

  // INVALID_ARGUMENT, NOT_FOUND: TLS files. `directory` and `clock` must outlive it.
  static absl::StatusOr<std::unique_ptr<NodeHealth>> Create(const NodeDirectory& directory,
                                                            NodeHealthOptions options,
                                                            MetricRegistry metrics,
                                                            const Clock& clock,
                                                            OnDecodeInfo on_decode_info);
  // Waits for questions under way (at most their time-out).
  ~NodeHealth();

  // Asks every node that isn't being asked. The owner calls it once per interval.
  void Poll() EXCLUDES(mu_);

  // In the directory's order.
  std::vector<std::shared_ptr<Node>> Nodes(NodeRole role) const EXCLUDES(mu_);

 private:
  NodeHealth(const NodeDirectory& directory, NodeHealthOptions options, MetricRegistry metrics,
             const Clock& clock, OnDecodeInfo on_decode_info);
  absl::Status Reconcile() EXCLUDES(mu_);
  void Ask(const std::shared_ptr<Node>& node) EXCLUDES(mu_);
  template <typename Reply>
  void Answered(const std::shared_ptr<Node>& node, const absl::Status& status,
                std::shared_ptr<const Reply> reply) EXCLUDES(mu_);
  void Publish(const Node& node);

  const NodeDirectory& directory_;
  const NodeHealthOptions options_;
  const Clock& clock_;
  const OnDecodeInfo on_decode_info_;
  GaugeFamily state_gauge_;
  GaugeFamily inflight_gauge_;
  mutable Mutex mu_;
  CondVar idle_;
  std::vector<std::shared_ptr<Node>> nodes_ GUARDED_BY(mu_);
  int asking_ GUARDED_BY(mu_) = 0;
  bool stopped_ GUARDED_BY(mu_) = false;
};

}  // namespace baton
