#include "router/route/generation_call.h"

#include <grpcpp/client_context.h>

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/logging.h"
#include "common/base/strings.h"
#include "common/rpc/call_context.h"
#include "router/route/request_check.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::nanoseconds;

// How often a call that waits for a node looks again.
constexpr milliseconds kNodeWaitStep{50};

template <typename From>
void MoveDelta(From& from, v1::GenerateEvent::Delta* to) {
  to->set_text(std::move(*from.mutable_text()));
  to->mutable_token_ids()->Swap(from.mutable_token_ids());
  to->mutable_logprobs()->Swap(from.mutable_logprobs());
  to->mutable_prompt_logprobs()->Swap(from.mutable_prompt_logprobs());
}

}  // namespace

GenerationCall::GenerationCall(RouterCore& core, CallInfo info, v1::GenerateRequest request,
                               std::shared_ptr<GenerationSink> sink)
    : core_(core), info_(std::move(info)), request_(std::move(request)), sink_(std::move(sink)) {
  if (info_.arrival == nanoseconds(0)) info_.arrival = core_.clock.Now();
  info_.deadline =
      std::min(info_.deadline, absl::Now() + absl::FromChrono(core_.config.limits.request_timeout));
}

std::shared_ptr<GenerationCall> GenerationCall::Start(RouterCore& core, CallInfo info,
                                                      v1::GenerateRequest request,
                                                      std::shared_ptr<GenerationSink> sink) {
  std::shared_ptr<GenerationCall> call(
      new GenerationCall(core, std::move(info), std::move(request), std::move(sink)));
  core.executor.Post([call] { call->Prepare(); });
  return call;
}

double GenerationCall::SecondsSinceArrival() const {
  return Seconds(core_.clock.Now() - info_.arrival);
}

void GenerationCall::Prepare() {
  if (EndIfAborted()) return;
  core_.metrics.overhead.With({"queue"}).Observe(SecondsSinceArrival());
  prepare_started_ = core_.clock.Now();
  if (absl::Status s = CheckGenerateRequest(request_); !s.ok()) return Finish(s);
  absl::StatusOr<ModelRoute> route = core_.Resolve(request_.model());
  if (!route.ok()) return Finish(route.status());
  route_ = *std::move(route);
  core_.assets.GetTokenizer(
      route_.model.tokenizer_digest(), route_.nodes,
      [self = shared_from_this()](auto tokenizer) { self->OnTokenizer(std::move(tokenizer)); });
}

void GenerationCall::OnTokenizer(absl::StatusOr<std::shared_ptr<const Tokenizer>> tokenizer) {
  if (EndIfAborted()) return;
  if (!tokenizer.ok()) return Finish(tokenizer.status());
  tokenizer_ = *std::move(tokenizer);
  const std::string& digest = route_.model.chat_template_digest();
  if (!request_.has_chat() || digest.empty()) return Tokenise(nullptr);
  core_.assets.GetChatTemplate(digest, route_.nodes, [self = shared_from_this()](auto chat) {
    self->OnChatTemplate(std::move(chat));
  });
}

void GenerationCall::OnChatTemplate(absl::StatusOr<std::shared_ptr<const ChatTemplate>> chat) {
  if (EndIfAborted()) return;
  if (!chat.ok()) return Finish(chat.status());
  Tokenise(chat->get());
}

void GenerationCall::Tokenise(const ChatTemplate* chat) {
  PromptOptions options;
  options.parse_special = core_.config.prompt.parse_special;
  options.scope = info_.tenant.empty() ? core_.config.scope : info_.tenant;
  const auto tokens = TokenizePrompt(request_, route_.model, *tokenizer_, chat, options);
  if (!tokens.ok()) return Finish(tokens.status());
  auto decode =
      MakeDecodeRequest(request_, route_.model, *tokenizer_, *tokens, info_.request_id, options);
  if (!decode.ok()) return Finish(decode.status());
  decode_request_ = *std::move(decode);
  if (chat != nullptr && request_.chat().tools_size() > 0) {
    const auto& tools = request_.chat().tools();
    tool_calls_.emplace(*chat, std::vector<std::string>(tools.begin(), tools.end()));
  }
  core_.metrics.overhead.With({"tokenize"}).Observe(Seconds(core_.clock.Now() - prepare_started_));
  core_.retry.OnRequest();
  NextAttempt();
}

void GenerationCall::NextAttempt() {
  if (EndIfAborted()) return;
  const nanoseconds now = core_.clock.Now();
  const bool first = calls_ == 0;
  const bool last_chance = first || (wait_until_ != nanoseconds(0) && now >= wait_until_);
  const std::shared_ptr<Node> node =
      core_.PickDecode(route_.model, space_, tried_, /*suspects=*/last_chance);
  const bool tried = std::find(tried_.begin(), tried_.end(), node) != tried_.end();
  if (only_untried_ && (node == nullptr || tried)) return Finish(last_error_);
  if (node != nullptr) return StartAttempt(node);
  if (last_chance) {
    return Finish(absl::UnavailableError(
        first ? Cat("no decode node that serves '", route_.model.name(), "' is reachable now")
              : Cat("no decode node took over: ", last_error_.message())));
  }
  if (wait_until_ == nanoseconds(0)) wait_until_ = now + core_.config.retry.node_wait;
  WaitThen(kNodeWaitStep, &GenerationCall::NextAttempt);
}

// By its first blocks: prompts of one document meet, whatever is asked about it.
std::string GenerationCall::PrefixName(const v1::DecodeRequest& request) {
  constexpr int kBlocks = 8;
  const int blocks = std::min(kBlocks, request.block_hashes_size());
  return blocks == 0 ? "" : request.block_hashes(blocks - 1);
}

void GenerationCall::StartAttempt(const std::shared_ptr<Node>& node) {
  const nanoseconds route_started = core_.clock.Now();
  wait_until_ = nanoseconds(0);
  node_ = node;
  if (std::find(tried_.begin(), tried_.end(), node) == tried_.end()) tried_.push_back(node);
  lease_ = NodeLease(node);
  attempt_scored_ = 0;
  attempt_began_ = false;
  v1::DecodeRequest request = decode_request_;
  request.mutable_resume_token_ids()->Assign(delivered_.begin(), delivered_.end());
  if (request.strategy() != "oracle") {
    PrefillChoice choice = core_.ChoosePrefill(*node, route_.model, PrefixName(request));
    for (const auto& producer : choice.nodes) request.add_prefill_nodes(producer->address());
    if (!choice.nodes.empty()) prefill_lease_ = NodeLease(choice.nodes.front());
    request.set_no_prefill_reason(std::move(choice.why_none));
  }
  auto context = std::make_unique<grpc::ClientContext>();
  SetDeadline(*context, info_.deadline);
  SetRequestId(*context, info_.request_id);
  if (++calls_ == 1) {
    router_s_ = SecondsSinceArrival();
    core_.metrics.overhead.With({"route"}).Observe(Seconds(core_.clock.Now() - route_started));
    core_.metrics.overhead.With({"total"}).Observe(router_s_);
  }
  node->OnCallStart();
  uint64_t attempt;
  {
    MutexLock lock(mu_);
    attempt = ++attempt_;
  }
  auto stream = Stream::Start(
      std::move(context), std::move(request),
      [node](auto* call, auto* message, auto* reactor) {
        node->decode().async()->Generate(call, message, reactor);
      },
      {.on_message = [self = shared_from_this()](v1::DecodeEvent& e) { self->OnMessage(e); },
       .on_done = [self =
                       shared_from_this()](absl::Status s) { self->OnAttemptDone(std::move(s)); }});
  bool cancel = false;
  {
    MutexLock lock(mu_);
    // The attempt may be over already, and the next one running on another thread.
    if (attempt == attempt_) {
      stream_ = stream;
      cancel = !aborted_.ok();
    }
  }
  if (cancel) stream->Cancel();
}

void GenerationCall::OnMessage(v1::DecodeEvent& event) {
  if (finished_) return;
  if (event.has_delta()) {
    OnDelta(*event.mutable_delta());
  } else if (event.has_finished() && event.finished().reason() != v1::CANCELLED) {
    // A node that gave up says so in its status, too; that decides what happens next.
    OnFinished(*event.mutable_finished());
  }
}

void GenerationCall::OnDelta(v1::DecodeEvent::Delta& delta) {
  const int count = delta.token_ids_size();
  const nanoseconds now = core_.clock.Now();
  if (!attempt_began_) FixSpace();
  attempt_began_ = true;
  DropKnownScores(delta);
  if (count > 0) {
    if (delivered_.empty()) {
      ttft_s_ = Seconds(now - info_.arrival);
      if (!Aborted()) core_.metrics.ttft.With({info_.stream ? "true" : "false"}).Observe(ttft_s_);
    } else {
      const double each = Seconds(now - last_token_) / count;
      for (int i = 0; i < count; ++i) core_.metrics.inter_token.Observe(each);
    }
    last_token_ = now;
    prefill_lease_.Reset();
    delivered_.insert(delivered_.end(), delta.token_ids().begin(), delta.token_ids().end());
  }
  v1::GenerateEvent event;
  MoveDelta(delta, event.mutable_delta());
  if (tool_calls_) event.mutable_delta()->set_text(tool_calls_->Push(event.delta().text()));
  if (!sink_->OnEvent(std::move(event))) {
    Abort(absl::ResourceExhaustedError("the client reads too slowly"));
  }
}

void GenerationCall::FixSpace() {
  const auto info = node_->decode_info();
  if (!info || !space_.empty()) return;
  for (const v1::DecodeModel& model : info->models()) {
    if (model.name() == route_.model.name()) space_ = model.native_space().digest();
  }
}

void GenerationCall::DropKnownScores(v1::DecodeEvent::Delta& delta) {
  const int64_t count = delta.prompt_logprobs_size();
  const int64_t known = std::clamp<int64_t>(scored_ - attempt_scored_, 0, count);
  delta.mutable_prompt_logprobs()->DeleteSubrange(0, static_cast<int>(known));
  attempt_scored_ += count;
  scored_ = std::max(scored_, attempt_scored_);
}

void GenerationCall::OnFinished(v1::DecodeEvent::Finished& finished) {
  finished_ = true;
  v1::GenerateEvent event;
  v1::GenerateEvent::Finished* out = event.mutable_finished();
  if (tool_calls_) SendToolCalls(out);
  out->set_reason(finished.reason());
  out->set_stop_text(finished.stop_text());
  *out->mutable_usage() = finished.usage();
  // A resumed stream's tokens count as well, whoever generated them.
  out->mutable_usage()->set_completion_tokens(std::max<int64_t>(
      finished.usage().completion_tokens(), static_cast<int64_t>(delivered_.size())));
  usage_ = out->usage();
  served_ = finished.timing().strategy();
  if (request_.want_timing()) {
    out->mutable_timing()->Swap(finished.mutable_timing());
    out->mutable_timing()->set_router_s(router_s_);
  }
  sink_->OnEvent(std::move(event));
}

void GenerationCall::SendToolCalls(v1::GenerateEvent::Finished* out) {
  const ToolCallReader::Reply reply = tool_calls_->Finish();
  if (!reply.text.empty()) {
    v1::GenerateEvent event;
    event.mutable_delta()->set_text(reply.text);
    sink_->OnEvent(std::move(event));
  }
  for (const ChatToolCall& call : reply.calls) {
    v1::ToolCall* to = out->add_tool_calls();
    to->set_id(call.id);
    to->set_name(call.name);
    to->set_arguments(call.arguments);
  }
}

bool GenerationCall::FinishFromDelivered() {
  const v1::StopConditions& stop = decode_request_.stop();
  const bool all_scored = stop.max_tokens() == 0 && scored_ == decode_request_.token_ids_size();
  if (delivered_.empty() && !all_scored) return false;
  const auto count = static_cast<int64_t>(delivered_.size());
  const auto is_end = [&](const auto& ids) {
    return count > 0 && std::find(ids.begin(), ids.end(), delivered_.back()) != ids.end();
  };
  v1::DecodeEvent::Finished finished;
  if ((!stop.ignore_eos() && is_end(route_.model.eos_token_ids())) ||
      is_end(stop.stop_token_ids())) {
    finished.set_reason(v1::STOP);
  } else if (count >= stop.max_tokens()) {
    finished.set_reason(v1::LENGTH);
  } else {
    return false;
  }
  finished.mutable_usage()->set_prompt_tokens(decode_request_.token_ids_size());
  finished.mutable_usage()->set_completion_tokens(count);
  OnFinished(finished);
  return true;
}

void GenerationCall::OnAttemptDone(absl::Status status) {
  {
    MutexLock lock(mu_);
    stream_.reset();
    ++attempt_;
  }
  if (status.ok() && !finished_) {
    status = absl::UnavailableError("the decode node ended the stream without a result");
  }
  node_->OnCallEnd(status);
  lease_.Reset();
  prefill_lease_.Reset();
  if (finished_) return Finish(absl::OkStatus());
  if (EndIfAborted()) return;
  AfterFailure(std::move(status));
}

void GenerationCall::AfterFailure(absl::Status status) {
  // A node that is full before it began says nothing about the others.
  const bool full = absl::IsResourceExhausted(status) && !attempt_began_;
  if (!full && !IsRetryableElsewhere(status.code())) return Finish(status);
  only_untried_ = full;
  if (absl::Now() >= info_.deadline) {
    return Finish(absl::DeadlineExceededError("the deadline passed"));
  }
  if (FinishFromDelivered()) return Finish(absl::OkStatus());
  last_error_ = status;
  BATON_RLOG_WARN(info_.request_id, "decode node {} failed after {} tokens (call {} of {}): {}",
                  node_->address(), delivered_.size(), calls_, core_.retry.max_attempts(), status);
  const bool started = !delivered_.empty();
  if (calls_ >= core_.retry.max_attempts() || (!started && !core_.retry.TryTake())) {
    if (full) return Finish(status);
    return Finish(absl::UnavailableError(Cat(
        "decode failed after ", calls_, calls_ == 1 ? " call: " : " calls: ", status.message())));
  }
  (started ? core_.metrics.migrations : core_.metrics.retries).Increment();
  if (full) return NextAttempt();
  WaitThen(core_.retry.Backoff(calls_ + 1), &GenerationCall::NextAttempt);
}

void GenerationCall::WaitThen(nanoseconds delay, void (GenerationCall::*next)()) {
  MutexLock lock(mu_);
  // An abort that came before the timer existed must not wait for it.
  const nanoseconds wait = aborted_.ok() ? delay : nanoseconds(0);
  timer_ =
      core_.executor.After(wait, [self = shared_from_this(), next](bool) { ((*self).*next)(); });
}

void GenerationCall::Cancel() {
  Abort(absl::Now() >= info_.deadline ? absl::DeadlineExceededError("the deadline passed")
                                      : absl::CancelledError("the client went away"));
}

void GenerationCall::Abort(absl::Status reason) {
  std::shared_ptr<Stream> stream;
  std::shared_ptr<RouterExecutor::Timer> timer;
  {
    MutexLock lock(mu_);
    if (!aborted_.ok()) return;
    aborted_ = std::move(reason);
    stream = stream_;
    timer = timer_;
  }
  if (stream) stream->Cancel();
  if (timer) timer->Cancel();
}

bool GenerationCall::Aborted() {
  MutexLock lock(mu_);
  return !aborted_.ok();
}

bool GenerationCall::EndIfAborted() {
  absl::Status reason;
  {
    MutexLock lock(mu_);
    reason = aborted_;
  }
  if (reason.ok() && absl::Now() >= info_.deadline) {
    reason = absl::DeadlineExceededError("the deadline passed");
  }
  if (reason.ok()) return false;
  Finish(reason);
  return true;
}

void GenerationCall::Finish(const absl::Status& status) {
  {
    MutexLock lock(mu_);
    stream_.reset();
    timer_.reset();
    if (aborted_.ok()) aborted_ = absl::CancelledError("over");  // later Cancels do nothing
  }
  absl::Status final = status;
  if (status.code() == absl::StatusCode::kResourceExhausted ||
      status.code() == absl::StatusCode::kUnavailable) {
    final = WithRetryAfter(status, absl::FromChrono(core_.config.limits.retry_after));
  }
  RouterMetrics& m = core_.metrics;
  m.requests.With({std::string(absl::StatusCodeToString(status.code()))}).Increment();
  const double e2e = SecondsSinceArrival();
  if (status.ok()) {
    m.e2e.Observe(e2e);
    m.prompt_tokens.Increment(static_cast<double>(usage_.prompt_tokens()));
    m.completion_tokens.Increment(static_cast<double>(usage_.completion_tokens()));
  }
  BATON_RLOG_INFO(info_.request_id,
                  "{}: model={} node={} prompt={} cached={} transferred={} generated={} calls={} "
                  "strategy={} ttft={:.1f}ms e2e={:.1f}ms{}{}",
                  absl::StatusCodeToString(status.code()), route_.model.name(),
                  node_ ? node_->address() : "-", decode_request_.token_ids_size(),
                  usage_.cached_tokens(), usage_.transferred_tokens(), delivered_.size(), calls_,
                  served_.empty() ? "-" : served_, ttft_s_ < 0 ? 0 : ttft_s_ * 1e3, e2e * 1e3,
                  status.ok() ? "" : ": ", std::string(status.message()));
  // The counters are down before the client hears of the end.
  core_.Leave();
  sink_->OnDone(final);
}

}  // namespace baton
