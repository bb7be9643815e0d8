#include "router/route/router_core.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"

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

std::vector<std::shared_ptr<Node>> RouterCore::OrderPrefill(const v1::DecodeModel& model) const {
  std::vector<std::shared_ptr<Node>> able;
  std::vector<std::string> digests;
  if (model.base_model().empty()) return able;
  for (const auto& node : health_->Nodes(NodeRole::kPrefill)) {
    const auto info = node->prefill_info();
    if (!info || !node->Usable(false)) continue;
    for (const v1::PrefillModel& theirs : info->models()) {
      if (theirs.name() != model.base_model()) continue;
      able.push_back(node);
      digests.push_back(theirs.space().digest());
      break;
    }
  }
  std::vector<std::shared_ptr<Node>> same;
  std::vector<std::shared_ptr<Node>> others;
  for (size_t i : prefill_policy_->Order(model.base_model(), LoadsOf(able))) {
    const std::string& wanted = model.accepts().digest();
    (wanted.empty() || digests[i] == wanted ? same : others).push_back(able[i]);
  }
  same.insert(same.end(), others.begin(), others.end());
  if (same.size() > kMaxPrefillNodes) same.resize(kMaxPrefillNodes);
  if (same.empty() && !config.nodes.prefill.empty()) {
    BATON_LOG_EVERY_SEC(30,
                        "model '{}': none of the {} configured prefill nodes runs its base '{}' "
                        "now; its prompts are prefilled on the decode node",
                        model.name(), config.nodes.prefill.size(), model.base_model());
  }
  return same;
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
        out.set_ready(node->Usable(false) && assets.HasTokenizer(model.tokenizer_digest()));
      }
    }
  }
  std::vector<v1::ModelInfo> list;
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
