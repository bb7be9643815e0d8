#include "router/route/router.h"

#include <utility>

#include "common/base/ids.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/base/thread_budget.h"
#include "router/route/generation_call.h"
#include "router/route/request_check.h"
#include "router/route/router_core.h"

namespace baton {
namespace {

// A generation that was refused before it began.
class NoGeneration final : public Generation {
 public:
  void Cancel() override {}
};

}  // namespace

Router::Router(std::unique_ptr<RouterCore> core) : core_(std::move(core)) {}

absl::StatusOr<std::unique_ptr<Router>> Router::Create(const RouterConfig& config,
                                                       const NodeDirectory& directory,
                                                       MetricRegistry registry,
                                                       const Clock& clock) {
  BATON_ASSIGN_OR_RETURN(const ThreadBudget budget,
                         ThreadBudget::FromConfig(0, config.limits.worker_threads));
  BATON_ASSIGN_OR_RETURN(
      auto core, RouterCore::Create(config, directory, std::move(registry), clock, budget.worker));
  return std::unique_ptr<Router>(new Router(std::move(core)));
}

Router::~Router() {
  StartDraining();
  core_->assets.Stop();
  while (!core_->WaitIdle(std::chrono::seconds(10))) {
    BATON_LOG_WARN("router: {} generations are still under way", core_->inflight());
  }
}

void Router::StartDraining() { draining_.store(true); }

int Router::inflight() const { return core_->inflight(); }

std::shared_ptr<Generation> Router::Generate(CallInfo info, v1::GenerateRequest request,
                                             std::shared_ptr<GenerationSink> sink) {
  absl::Status refused;
  if (draining_.load()) {
    refused = absl::UnavailableError("the router is shutting down");
  } else if (!core_->TryEnter()) {
    refused =
        absl::ResourceExhaustedError(Cat("the router is busy: ", core_->config.limits.max_inflight,
                                         " generations are under way (limits.max_inflight)"));
  }
  if (!refused.ok()) {
    core_->metrics.requests.With({std::string(absl::StatusCodeToString(refused.code()))})
        .Increment();
    sink->OnDone(WithRetryAfter(refused, absl::FromChrono(core_->config.limits.retry_after)));
    return std::make_shared<NoGeneration>();
  }
  if (info.request_id.empty()) info.request_id = NewRequestId();
  return GenerationCall::Start(*core_, std::move(info), std::move(request), std::move(sink));
}

std::vector<v1::ModelInfo> Router::Models() const { return core_->Models(); }

bool Router::Ready() const { return !draining_.load() && core_->Ready(); }

void Router::Tokenize(const v1::TokenizeRequest& request,
                      std::function<void(absl::StatusOr<v1::TokenizeResponse>)> done) {
  v1::GenerateRequest prompt;  // so that the same checks and rules apply
  if (request.has_chat()) *prompt.mutable_chat() = request.chat();
  if (request.has_text()) prompt.set_text(request.text());
  if (prompt.prompt_case() == v1::GenerateRequest::PROMPT_NOT_SET) {
    return done(absl::InvalidArgumentError("input: missing; set exactly one of text, chat"));
  }
  if (request.has_text() && request.text().empty()) return done(v1::TokenizeResponse());
  if (absl::Status s = CheckGenerateRequest(prompt); !s.ok()) return done(s);
  absl::StatusOr<ModelRoute> route = core_->Resolve(request.model());
  if (!route.ok()) return done(route.status());
  const v1::DecodeModel model = route->model;
  const std::string chat_digest = request.has_chat() ? model.chat_template_digest() : "";
  const bool parse_special = request.parse_special();
  auto finish = [prompt = std::move(prompt), model, parse_special, done](const Tokenizer& tokenizer,
                                                                         const ChatTemplate* chat) {
    // Plain text is tokenised as it stands, without BOS: what a caller counts or cuts.
    absl::StatusOr<std::vector<int32_t>> ids =
        prompt.has_text() ? tokenizer.Encode(prompt.text(), {.parse_special = parse_special})
                          : TokenizePrompt(prompt, model, tokenizer, chat, {});
    if (!ids.ok()) return done(ids.status());
    v1::TokenizeResponse response;
    response.mutable_ids()->Assign(ids->begin(), ids->end());
    done(std::move(response));
  };
  core_->assets.GetTokenizer(
      model.tokenizer_digest(), route->nodes,
      [this, nodes = route->nodes, chat_digest, finish, done](auto tokenizer) {
        if (!tokenizer.ok()) return done(tokenizer.status());
        if (chat_digest.empty()) return finish(**tokenizer, nullptr);
        core_->assets.GetChatTemplate(chat_digest, nodes,
                                      [tokenizer = *tokenizer, finish, done](auto chat) {
                                        if (!chat.ok()) return done(chat.status());
                                        finish(*tokenizer, chat->get());
                                      });
      });
}

void Router::Detokenize(const v1::DetokenizeRequest& request,
                        std::function<void(absl::StatusOr<v1::DetokenizeResponse>)> done) {
  absl::StatusOr<ModelRoute> route = core_->Resolve(request.model());
  if (!route.ok()) return done(route.status());
  core_->assets.GetTokenizer(
      route->model.tokenizer_digest(), route->nodes,
      [ids = std::vector<int64_t>(request.ids().begin(), request.ids().end()),
       done](auto tokenizer) {
        if (!tokenizer.ok()) return done(tokenizer.status());
        std::vector<int32_t> narrow;
        narrow.reserve(ids.size());
        for (size_t i = 0; i < ids.size(); ++i) {
          if (ids[i] < 0 || ids[i] >= (*tokenizer)->vocab_size()) {
            return done(absl::InvalidArgumentError(Cat("ids[", i, "]: token id ", ids[i],
                                                       " is outside the vocabulary [0, ",
                                                       (*tokenizer)->vocab_size() - 1, "]")));
          }
          narrow.push_back(static_cast<int32_t>(ids[i]));
        }
        absl::StatusOr<std::string> text = (*tokenizer)->Decode(narrow);
        if (!text.ok()) return done(text.status());
        v1::DetokenizeResponse response;
        response.set_text(*std::move(text));
        done(std::move(response));
      });
}

}  // namespace baton
