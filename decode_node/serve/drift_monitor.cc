#include "decode_node/serve/drift_monitor.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace baton {
namespace {

// By id; the chosen token is among the others or one more of them.
std::map<std::int32_t, double> Probabilities(const TokenPrediction& of) {
  std::map<std::int32_t, double> p;
  for (const TokenLogprobEntry& entry : of) p[entry.token_id] = std::exp(entry.logprob);
  return p;
}

const TokenLogprobEntry* Top(const TokenPrediction& of) {
  const auto it = std::max_element(
      of.begin(), of.end(), [](const auto& a, const auto& b) { return a.logprob < b.logprob; });
  return it == of.end() ? nullptr : &*it;
}

}  // namespace

double BucketKl(const TokenPrediction& own, const TokenPrediction& served) {
  constexpr double kLeast = 1e-9;  // what fp32 sums leave of a bucket that is empty
  const auto p = Probabilities(own);
  const auto q = Probabilities(served);
  double kl = 0;
  double rest_p = 1;
  double rest_q = 1;
  for (const auto& [id, of_p] : p) {
    const auto it = q.find(id);
    if (it == q.end()) continue;
    rest_p -= of_p;
    rest_q -= it->second;
    if (of_p > 0) kl += of_p * std::log(of_p / std::max(it->second, kLeast));
  }
  rest_p = std::max(rest_p, kLeast);
  rest_q = std::max(rest_q, kLeast);
  return std::max(0.0, kl + rest_p * std::log(rest_p / rest_q));
}

bool SameTop(const TokenPrediction& own, const TokenPrediction& served) {
  const TokenLogprobEntry* a = Top(own);
  const TokenLogprobEntry* b = Top(served);
  return a != nullptr && b != nullptr && a->token_id == b->token_id;
}

// Gathers the predictions of the tokens behind the prompt.
class DriftMonitor::Listener final : public RequestListener {
 public:
  Listener(std::shared_ptr<DriftMonitor> monitor, std::string model, std::size_t prompt,
           std::vector<TokenPrediction> served)
      : monitor_(std::move(monitor)),
        model_(std::move(model)),
        prompt_(prompt),
        served_(std::move(served)) {}

  void OnTokens(TokenDelta delta) override {
    for (TokenPrediction& prediction : delta.prompt_logprobs) {
      if (seen_++ >= prompt_) own_.push_back(std::move(prediction));
    }
  }
  void OnFinished(const FinishInfo& info) override {
    const bool ok = info.status.ok() && own_.size() == served_.size();
    if (ok) monitor_->Compare(model_, own_, served_);
    monitor_->End(model_, ok ? "ok" : "failed");
  }

 private:
  const std::shared_ptr<DriftMonitor> monitor_;
  const std::string model_;
  const std::size_t prompt_;
  const std::vector<TokenPrediction> served_;
  std::size_t seen_ = 0;
  std::vector<TokenPrediction> own_;
};

DriftMonitor::DriftMonitor(double share, MetricRegistry& metrics, std::uint64_t seed)
    : share_(share),
      kl_(metrics.AddHistogramFamily("baton_drift_kl_nats",
                                     "KL of predictions over decoded prefixes to the model's own.",
                                     {"model"}, {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10})),
      tokens_(metrics.AddCounterFamily("baton_drift_tokens_total",
                                       "Generated tokens whose predictions were compared.",
                                       {"model"})),
      same_(metrics.AddCounterFamily("baton_drift_top1_same_tokens_total",
                                     "Of these, with the same likeliest token.", {"model"})),
      replays_(metrics.AddCounterFamily("baton_drift_replays_total",
                                        "Watched requests, by what became of the replay.",
                                        {"model", "outcome"})),
      random_(seed) {}

bool DriftMonitor::Sample() {
  if (share_ <= 0) return false;
  MutexLock lock(mu_);
  return std::uniform_real_distribution<double>()(random_) < share_;
}

void DriftMonitor::Replay(const HostedModel& model, Answer answer) {
  if (answer.served.empty()) return;
  if (busy_.exchange(true)) {
    replays_.With({model.name, "busy"}).Increment();
    return;
  }
  EngineRequest request;
  request.request_id = "drift";
  request.adapter = answer.adapter;
  request.priority = std::numeric_limits<int>::min();
  request.sampling.logprobs = request.sampling.prompt_logprobs = true;
  request.sampling.top_logprobs = kTop;
  request.stop.max_tokens = 0;
  const std::size_t prompt = answer.tokens.size() - answer.served.size();
  request.tokens = std::move(answer.tokens);
  const auto handle = model.engine->Submit(
      std::move(request),
      std::make_shared<Listener>(shared_from_this(), model.name, prompt, std::move(answer.served)));
  if (!handle.ok()) End(model.name, "failed");
}

void DriftMonitor::Compare(const std::string& model, const std::vector<TokenPrediction>& own,
                           const std::vector<TokenPrediction>& served) {
  for (std::size_t i = 0; i < own.size(); ++i) {
    kl_.With({model}).Observe(BucketKl(own[i], served[i]));
    if (SameTop(own[i], served[i])) same_.With({model}).Increment();
  }
  tokens_.With({model}).Increment(static_cast<double>(own.size()));
}

void DriftMonitor::End(const std::string& model, const char* outcome) {
  replays_.With({model, outcome}).Increment();
  busy_ = false;
}

}  // namespace baton
