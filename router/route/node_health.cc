#include "router/route/node_health.h"

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <algorithm>
#include <type_traits>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/rpc/call_context.h"
#include "common/rpc/status.h"

namespace baton {

std::string_view NodeStateName(NodeState state) {
  switch (state) {
    case NodeState::kActive:
      return "active";
    case NodeState::kSuspect:
      return "suspect";
    case NodeState::kGone:
      return "gone";
  }
  return "unknown";
}

Node::Node(NodeEntry entry, std::shared_ptr<grpc::Channel> channel, const HealthConfig& config,
           const Clock& clock)
    : entry_(std::move(entry)),
      config_(config),
      clock_(clock),
      decode_(v1::Decode::NewStub(channel)),
      prefill_(v1::Prefill::NewStub(channel)),
      breaker_(config.breaker_failures, config.breaker_open) {}

NodeState Node::state() const {
  MutexLock lock(mu_);
  return state_;
}

bool Node::draining() const {
  MutexLock lock(mu_);
  return draining_;
}

std::shared_ptr<const v1::DecodeInfo> Node::decode_info() const {
  MutexLock lock(mu_);
  return decode_info_;
}

std::shared_ptr<const v1::PrefillInfo> Node::prefill_info() const {
  MutexLock lock(mu_);
  return prefill_info_;
}

bool Node::Usable(bool suspects) const {
  MutexLock lock(mu_);
  if (draining_ || state_ == NodeState::kGone || !breaker_.Allows(clock_.Now())) return false;
  return state_ == NodeState::kActive || suspects;
}

int64_t Node::Load() const {
  MutexLock lock(mu_);
  return inflight_.load() + others_load_;
}

void Node::OnCallStart() {
  MutexLock lock(mu_);
  breaker_.OnStart(clock_.Now());
}

void Node::OnCallEnd(const absl::Status& status) {
  MutexLock lock(mu_);
  const bool was_open = breaker_.open();
  breaker_.OnEnd(status.code(), clock_.Now());
  if (breaker_.open() && !was_open) {
    BATON_LOG_WARN("{} node {}: circuit breaker open after {} failed calls, the last: {}",
                   NodeRoleName(role()), address(), config_.breaker_failures, status);
  }
  // Don't wait for the next question to look elsewhere.
  if (status.code() == absl::StatusCode::kUnavailable && state_ == NodeState::kActive) {
    SetState(NodeState::kSuspect, status.ToString());
  }
}

void Node::SetState(NodeState state, std::string_view why) {
  if (state == state_) return;
  const bool better = state == NodeState::kActive;
  if (better) {
    BATON_LOG_INFO("{} node {}: {} -> active{}", NodeRoleName(role()), address(),
                   NodeStateName(state_), why);
  } else {
    BATON_LOG_WARN("{} node {}: {} -> {}: {}", NodeRoleName(role()), address(),
                   NodeStateName(state_), NodeStateName(state), why);
  }
  state_ = state;
}

void Node::OnInfo(std::shared_ptr<const v1::DecodeInfo> decode,
                  std::shared_ptr<const v1::PrefillInfo> prefill) {
  const v1::NodeIdentity& identity = decode ? decode->node() : prefill->node();
  const int64_t reported = decode ? int64_t{decode->running()} + decode->waiting()
                                  : int64_t{prefill->running()} + prefill->waiting();
  const bool draining = decode ? decode->draining() : prefill->draining();
  MutexLock lock(mu_);
  missed_ = 0;
  missed_logged_ = false;
  if (incarnation_ != 0 && incarnation_ != identity.incarnation()) {
    BATON_LOG_INFO("{} node {}: restarted ({})", NodeRoleName(role()), address(), identity.name());
    breaker_.Reset();
  }
  incarnation_ = identity.incarnation();
  if (draining && !draining_) {
    BATON_LOG_INFO("{} node {}: draining", NodeRoleName(role()), address());
  }
  draining_ = draining;
  others_load_ = std::max<int64_t>(0, reported - inflight_.load());
  decode_info_ = std::move(decode);
  prefill_info_ = std::move(prefill);
  SetState(NodeState::kActive, "");
}

void Node::OnMissed(const absl::Status& status) {
  MutexLock lock(mu_);
  ++missed_;
  if (state_ == NodeState::kActive) SetState(NodeState::kSuspect, status.ToString());
  if (state_ == NodeState::kSuspect && missed_ >= config_.gone_after) {
    SetState(NodeState::kGone, status.ToString());
    others_load_ = 0;
  } else if (state_ == NodeState::kGone && incarnation_ == 0 && !missed_logged_) {
    missed_logged_ = true;
    BATON_LOG_WARN("{} node {} does not answer yet: {}", NodeRoleName(role()), address(), status);
  }
}

NodeHealth::NodeHealth(const NodeDirectory& directory, NodeHealthOptions options,
                       MetricRegistry metrics, const Clock& clock, OnDecodeInfo on_decode_info)
    : directory_(directory),
      options_(std::move(options)),
      clock_(clock),
      on_decode_info_(std::move(on_decode_info)),
      state_gauge_(metrics.AddGaugeFamily("baton_node_state",
                                          "1 for the state a node is in, 0 for the others.",
                                          {"node", "role", "state"}, 4096)),
      inflight_gauge_(metrics.AddGaugeFamily(
          "baton_router_node_inflight",
          "This router's requests at a node, as of the last question.", {"node", "role"}, 4096)) {}

absl::StatusOr<std::unique_ptr<NodeHealth>> NodeHealth::Create(const NodeDirectory& directory,
                                                               NodeHealthOptions options,
                                                               MetricRegistry metrics,
                                                               const Clock& clock,
                                                               OnDecodeInfo on_decode_info) {
  std::unique_ptr<NodeHealth> health(new NodeHealth(
      directory, std::move(options), std::move(metrics), clock, std::move(on_decode_info)));
  BATON_RETURN_IF_ERROR(health->Reconcile());
  return health;
}

NodeHealth::~NodeHealth() {
  MutexLock lock(mu_);
  stopped_ = true;
  idle_.Wait(mu_, [this]() REQUIRES(mu_) { return asking_ == 0; });
}

absl::Status NodeHealth::Reconcile() {
  const std::vector<NodeEntry> entries = directory_.Snapshot();
  std::vector<std::shared_ptr<Node>> nodes;
  MutexLock lock(mu_);
  for (const NodeEntry& entry : entries) {
    const auto known = std::find_if(nodes_.begin(), nodes_.end(),
                                    [&](const auto& node) { return node->entry_ == entry; });
    if (known != nodes_.end()) {
      nodes.push_back(*known);
      continue;
    }
    BATON_ASSIGN_OR_RETURN(auto channel, MakeChannel(entry.address, options_.channel));
    nodes.push_back(std::make_shared<Node>(entry, std::move(channel), options_.health, clock_));
    Publish(*nodes.back());
  }
  nodes_ = std::move(nodes);
  return absl::OkStatus();
}

void NodeHealth::Poll() {
  if (absl::Status s = Reconcile(); !s.ok()) BATON_LOG_EVERY_SEC(10, "node directory: {}", s);
  std::vector<std::shared_ptr<Node>> nodes;
  {
    MutexLock lock(mu_);
    if (stopped_) return;
    nodes = nodes_;
  }
  for (const auto& node : nodes) {
    if (!node->polling_.exchange(true)) Ask(node);
  }
}

void NodeHealth::Ask(const std::shared_ptr<Node>& node) {
  const auto start = [&](auto request, auto reply, auto call) {
    struct Exchange {
      grpc::ClientContext context;
      decltype(request) question;
      std::shared_ptr<decltype(reply)> answer = std::make_shared<decltype(reply)>();
    };
    auto exchange = std::make_shared<Exchange>();
    SetDeadline(exchange->context, absl::Now() + absl::FromChrono(options_.health.timeout));
    {
      MutexLock lock(mu_);
      ++asking_;
    }
    call(&exchange->context, &exchange->question, exchange->answer.get(),
         [this, node, exchange](grpc::Status status) {
           using Reply = const decltype(reply);
           Answered(node, FromGrpcStatus(status), std::shared_ptr<Reply>(exchange->answer));
         });
  };
  if (node->role() == NodeRole::kDecode) {
    start(v1::DecodeInfoRequest(), v1::DecodeInfo(),
          [&](auto... args) { node->decode().async()->Info(args...); });
  } else {
    start(v1::PrefillInfoRequest(), v1::PrefillInfo(),
          [&](auto... args) { node->prefill().async()->Info(args...); });
  }
}

template <typename Reply>
void NodeHealth::Answered(const std::shared_ptr<Node>& node, const absl::Status& status,
                          std::shared_ptr<const Reply> reply) {
  if (!status.ok()) {
    node->OnMissed(status);
  } else if constexpr (std::is_same_v<Reply, v1::DecodeInfo>) {
    node->OnInfo(std::move(reply), nullptr);
    if (on_decode_info_) on_decode_info_(node);
  } else {
    node->OnInfo(nullptr, std::move(reply));
  }
  Publish(*node);
  node->polling_.store(false);
  MutexLock lock(mu_);
  if (--asking_ == 0) idle_.NotifyAll();
}

void NodeHealth::Publish(const Node& node) {
  const NodeState now = node.state();
  for (NodeState state : {NodeState::kActive, NodeState::kSuspect, NodeState::kGone}) {
    state_gauge_
        .With({node.address(), std::string(NodeRoleName(node.role())),
               std::string(NodeStateName(state))})
        .Set(state == now ? 1 : 0);
  }
  inflight_gauge_.With({node.address(), std::string(NodeRoleName(node.role()))})
      .Set(static_cast<double>(node.inflight()));
}

std::vector<std::shared_ptr<Node>> NodeHealth::Nodes(NodeRole role) const {
  std::vector<std::shared_ptr<Node>> nodes;
  MutexLock lock(mu_);
  for (const auto& node : nodes_) {
    if (node->role() == role) nodes.push_back(node);
  }
  return nodes;
}

}  // namespace baton
