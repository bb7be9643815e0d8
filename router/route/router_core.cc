#include "router/route/router_core.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "router/route/pair_check.h"

namespace baton {
namespace {

// A decode request may name no more (decode_node/serve).
constexpr size_t kMaxPrefillNodes = 16;

const v1::DecodeModel* FindModel(const v1::DecodeInfo& info, const std::string& name) {
  for (const v1::DecodeModel& model : info.models()) {
    if (model.name() == name) return &model;
  }
  return nullptr;
}

std::string Quoted(const std::set<std::string>& names) {
  std::string out;
  for (const std::string& name : names) {
    if (!out.empty()) out += ", ";
    out += Cat("'", name, "'");
  }
  return out;
}

bool Contains(const std::vector<std::shared_ptr<Node>>& nodes, const std::shared_ptr<Node>& node) {
  return std::find(nodes.begin(), nodes.end(), node) != nodes.end();
}

std::vector<int64_t> LoadsOf(const std::vector<std::shared_ptr<Node>>& nodes) {
  std::vector<int64_t> loads;
  loads.reserve(nodes.size());
  for (const auto& node : nodes) loads.push_back(node->Load());
  return loads;
}

}  // namespace

RouterCore::RouterCore(const RouterConfig& router_config, MetricRegistry& registry,
                       const Clock& the_clock, int threads)
    : config(router_config),
      clock(the_clock),
      metrics(registry),
      retry(router_config.retry),
      executor(threads),
      assets(executor),
      decode_policy_(Policy::Make(router_config.policy.decode)),
      prefill_policy_(Policy::Make(router_config.policy.prefill)) {}

absl::StatusOr<std::unique_ptr<RouterCore>> RouterCore::Create(const RouterConfig& config,
                                                               const NodeDirectory& directory,
                                                               MetricRegistry registry,
                                                               const Clock& clock, int threads) {
  std::unique_ptr<RouterCore> core(new RouterCore(config, registry, clock, threads));
  NodeHealthOptions options;
  options.health = config.health;
  options.channel = ToChannelOptions(config);
  RouterCore* raw = core.get();
  BATON_ASSIGN_OR_RETURN(
      core->health_,
      NodeHealth::Create(directory, std::move(options), registry, clock,
                         [raw](const std::shared_ptr<Node>& node) { raw->Prefetch(node); }));
  core->PollForEver();
  return core;
}

RouterCore::~RouterCore() {
  {
    MutexLock lock(mu_);
    stopped_ = true;
    if (poll_timer_) poll_timer_->Cancel();
  }
  health_.reset();
}

void RouterCore::PollForEver() {
  MutexLock lock(mu_);
  if (stopped_) return;
  CheckPairs();
  // Polling under the lock: the destructor takes it before it destroys the health table.
  health_->Poll();
  poll_timer_ = executor.After(config.health.interval, [this](bool cancelled) {
    if (!cancelled) PollForEver();
  });
}

void RouterCore::Prefetch(const std::shared_ptr<Node>& node) {
  const auto info = node->decode_info();
  if (!info) return;
  for (const v1::DecodeModel& model : info->models()) {
    if (!assets.HasTokenizer(model.tokenizer_digest())) {
      assets.GetTokenizer(model.tokenizer_digest(), {node}, [](const auto&) {});
    }
  }
}

absl::StatusOr<ModelRoute> RouterCore::Resolve(const std::string& name) const {
  const std::vector<std::shared_ptr<Node>> nodes = health_->Nodes(NodeRole::kDecode);
  std::set<std::string> known;
  for (const auto& node : nodes) {
    const auto info = node->decode_info();
    if (!info) continue;
    for (const v1::DecodeModel& model : info->models()) known.insert(model.name());
  }
  if (known.empty()) {
    return absl::UnavailableError("no decode node has answered yet; no model is known");
  }
  if (name.empty() && known.size() > 1) {
    return absl::InvalidArgumentError(Cat("model: missing; there are ", Quoted(known)));
  }
  const std::string wanted = name.empty() ? *known.begin() : name;
  if (known.count(wanted) == 0) {
    return absl::NotFoundError(
        Cat("model: '", wanted.substr(0, 200), "' is unknown; there are ", Quoted(known)));
  }
  ModelRoute route;
  bool from_usable = false;
  for (const auto& node : nodes) {
    const auto info = node->decode_info();
    const v1::DecodeModel* model = info ? FindModel(*info, wanted) : nullptr;
    if (model == nullptr) continue;
    const bool usable = node->Usable(false);
    if (route.nodes.empty() || (usable && !from_usable)) route.model = *model;
    from_usable = from_usable || usable;
    route.nodes.push_back(node);
  }
  return route;
}

std::shared_ptr<Node> RouterCore::PickDecode(const v1::DecodeModel& model, const std::string& space,
                                             const std::vector<std::shared_ptr<Node>>& tried,
                                             bool suspects) const {
  // Best first: untried and active, tried and active, then the same among suspects.
  std::vector<std::shared_ptr<Node>> tiers[4];
  for (const auto& node : health_->Nodes(NodeRole::kDecode)) {
    const auto info = node->decode_info();
    const v1::DecodeModel* theirs = info ? FindModel(*info, model.name()) : nullptr;
    // The ids are of one tokenizer, and a stream goes on only over the same weights.
    if (theirs == nullptr || theirs->tokenizer_digest() != model.tokenizer_digest()) continue;
    if (!space.empty() && theirs->native_space().digest() != space) continue;
    const int known = Contains(tried, node) ? 1 : 0;
    if (node->Usable(false)) {
      tiers[known].push_back(node);
    } else if (suspects && node->Usable(true)) {
      tiers[2 + known].push_back(node);
    }
  }
  for (const auto& tier : tiers) {
    if (!tier.empty()) return tier[decode_policy_->Pick(model.name(), LoadsOf(tier))];
  }
  return nullptr;
}

PrefillChoice RouterCore::FittingPrefill(const Node& decode, const v1::DecodeModel& model) const {
  PrefillChoice choice;
  if (model.base_model().empty() || config.nodes.prefill.empty()) return choice;
  const auto decode_info = decode.decode_info();
  for (const auto& node : health_->Nodes(NodeRole::kPrefill)) {
    const auto info = node->prefill_info();
    std::string why = "it does not answer now";
    if (info && node->Usable(false)) {
      why = WhyNotPair(decode_info ? decode_info->node() : v1::NodeIdentity(), model, *info);
    }
    if (why.empty()) {
      choice.nodes.push_back(node);
    } else {
      choice.why_none +=
          Cat(choice.why_none.empty() ? "" : "; ", "prefill node ", node->address(), ": ", why);
    }
  }
  if (!choice.nodes.empty()) choice.why_none.clear();
  return choice;
}

std::vector<size_t> RouterCore::OrderPrefill(const std::vector<std::shared_ptr<Node>>& nodes,
                                             const std::string& base_model,
                                             const std::string& prefix) const {
  if (config.policy.prefill != PolicyKind::kPrefix || prefix.empty()) {
    return prefill_policy_->Order(base_model, LoadsOf(nodes));
  }
  std::vector<std::string> addresses;
  addresses.reserve(nodes.size());
  for (const auto& node : nodes) addresses.push_back(node->address());
  return OrderByPrefix(prefix, addresses, LoadsOf(nodes));
}

PrefillChoice RouterCore::ChoosePrefill(const Node& decode, const v1::DecodeModel& model,
                                        const std::string& prefix) const {
  PrefillChoice choice = FittingPrefill(decode, model);
  if (choice.nodes.empty()) {
    if (choice.why_none.empty()) {
      choice.why_none = model.base_model().empty() ? "the model has no base_model to prefill with"
                                                   : "the router has no prefill nodes";
    }
    return choice;
  }
  const std::string& wanted = model.accepts().digest();
  const auto has_wanted = [&](const Node& node) {
    const auto info = node.prefill_info();
    return std::any_of(info->models().begin(), info->models().end(), [&](const auto& theirs) {
      return theirs.name() == model.base_model() && theirs.space().digest() == wanted;
    });
  };
  std::vector<std::shared_ptr<Node>> same;
  std::vector<std::shared_ptr<Node>> others;
  for (size_t i : OrderPrefill(choice.nodes, model.base_model(), prefix)) {
    const auto& node = choice.nodes[i];
    (wanted.empty() || has_wanted(*node) ? same : others).push_back(node);
  }
  same.insert(same.end(), others.begin(), others.end());
  if (same.size() > kMaxPrefillNodes) same.resize(kMaxPrefillNodes);
  choice.nodes = std::move(same);
  return choice;
}

std::string RouterCore::WhyNoPrefill(const Node& decode, const v1::DecodeModel& model) const {
  if (config.nodes.prefill.empty()) return "";
  const auto info = decode.decode_info();
  const std::string strategy = info ? info->default_strategy() : "";
  if (strategy == "none") {
    return Cat("decode node ", decode.address(), " has no transport: it can use no prefill node");
  }
  if (strategy == "oracle") {
    return Cat("handoff.strategy of decode node ", decode.address(),
               " is oracle: it may use prefill nodes only for requests that ask for it");
  }
  return FittingPrefill(decode, model).why_none;
}

void RouterCore::CheckPairs() {
  for (const auto& node : health_->Nodes(NodeRole::kDecode)) {
    const auto info = node->decode_info();
    if (!info || !node->Usable(false)) continue;
    for (const v1::DecodeModel& model : info->models()) {
      PairProblem& known = pair_problems_[{node->address(), model.name()}];
      const std::string why = WhyNoPrefill(*node, model);
      // Twice the same: a node that is just starting is not worth a line.
      if (why == known.why && why != known.said) {
        known.said = why;
        if (why.empty()) {
          BATON_LOG_INFO("model '{}' of decode node {} may use a prefill node now", model.name(),
                         node->address());
        } else {
          BATON_LOG_WARN(
              "prefill nodes are configured, but none may be used for model '{}' of decode node "
              "{}, which prefills its prompts itself: {}",
              model.name(), node->address(), why);
        }
      }
      known.why = why;
    }
  }
}

std::vector<v1::ModelInfo> RouterCore::Models() const {
  std::map<std::string, v1::ModelInfo> models;
  for (const auto& node : health_->Nodes(NodeRole::kDecode)) {
    const auto info = node->decode_info();
    if (!info) continue;
    for (const v1::DecodeModel& model : info->models()) {
      v1::ModelInfo& out = models[model.name()];
      if (!out.ready()) {
        out.set_name(model.name());
        out.set_base_model(model.base_model());
        out.set_max_context_tokens(model.max_context_tokens());
        out.set_ready(node->Usable(false) && assets.HasTokenizer(model.tokenizer_digest()) &&
                      (!config.nodes.require_prefill || WhyNoPrefill(*node, model).empty()));
      }
    }
  }
  std::vector<v1::ModelInfo> list;
  list.reserve(models.size());
  for (auto& [unused, model] : models) list.push_back(std::move(model));
  return list;
}

bool RouterCore::Ready() const {
  const std::vector<v1::ModelInfo> models = Models();
  return std::any_of(models.begin(), models.end(), [](const auto& m) { return m.ready(); });
}

bool RouterCore::TryEnter() {
  MutexLock lock(mu_);
  if (inflight_ >= config.limits.max_inflight) return false;
  metrics.inflight.Set(++inflight_);
  return true;
}

void RouterCore::Leave() {
  MutexLock lock(mu_);
  metrics.inflight.Set(--inflight_);
  if (inflight_ == 0) idle_.NotifyAll();
}

bool RouterCore::WaitIdle(std::chrono::nanoseconds timeout) {
  MutexLock lock(mu_);
  return idle_.WaitFor(mu_, timeout, [this]() REQUIRES(mu_) { return inflight_ == 0; });
}

int RouterCore::inflight() const {
  MutexLock lock(mu_);
  return inflight_;
}

}  // namespace baton
