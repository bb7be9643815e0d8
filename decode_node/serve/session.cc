#include "decode_node/serve/session.h"

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/logging.h"

namespace baton {
namespace {

using SteadyClock = std::chrono::steady_clock;

v1::FinishReason ToProto(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return v1::STOP;
    case FinishReason::kLength:
      return v1::LENGTH;
    case FinishReason::kCancelled:
    case FinishReason::kError:
      return v1::CANCELLED;
  }
  return v1::FINISH_REASON_UNSPECIFIED;
}

void Fill(const TokenLogprobEntry& entry, v1::TokenLogprob* out) {
  out->set_token_id(entry.token_id);
  if (!std::isnan(entry.logprob)) out->set_logprob(entry.logprob);
  out->set_bytes(entry.bytes);
}

void Fill(const std::vector<TokenLogprobEntry>& entries, v1::TokenLogprobs* out) {
  for (size_t i = 0; i < entries.size(); ++i) {
    Fill(entries[i], i == 0 ? out->mutable_chosen() : out->add_top());
  }
}

v1::DecodeEvent MakeDelta(TokenDelta delta) {
  v1::DecodeEvent event;
  v1::DecodeEvent::Delta* out = event.mutable_delta();
  out->set_text(std::move(delta.text));
  out->mutable_token_ids()->Add(delta.token_ids.begin(), delta.token_ids.end());
  for (const auto& entries : delta.logprobs) Fill(entries, out->add_logprobs());
  for (const auto& entries : delta.prompt_logprobs) Fill(entries, out->add_prompt_logprobs());
  return event;
}

constexpr double kQ4Bits = 4;
constexpr double kStreamBits = 16;

Coding CodingOf(Strategy strategy) {
  if (strategy == Strategy::kReuse || strategy == Strategy::kScd) return Coding::kReuse;
  if (strategy == Strategy::kSelective) return Coding::kSelective;
  return strategy == Strategy::kQ4 ? Coding::kQ4 : Coding::kRaw;
}

// No layer is patched, none is run here.
bool OfKvAlone(const CodeDecoder& decoder) { return !decoder.patched() && decoder.run().empty(); }

std::string Outcome(const absl::Status& status) {
  if (status.ok()) return "ok";
  if (absl::IsCancelled(status)) return "aborted";
  return absl::IsDeadlineExceeded(status) ? "deadline" : "error";
}

}  // namespace

Space AcceptedSpace(const HostedModel& model) {
  Space space = model.base_space;
  if (model.adapter < 0 && model.base_model != model.name) space.weights_digest.clear();
  return space;
}

Session::Session(std::shared_ptr<const SessionEnv> env, CheckedRequest request,
                 std::shared_ptr<Writer> writer, bool want_timing, absl::Time deadline,
                 std::function<void()> on_end)
    : env_(std::move(env)),
      writer_(std::move(writer)),
      want_timing_(want_timing),
      deadline_(deadline),
      arrival_(SteadyClock::now()),
      model_(*request.model),
      request_id_(request.request.request_id),
      request_(std::move(request)),
      on_end_(std::move(on_end)) {}

void Session::Start() {
  std::string why_not = WhyNoHandoff();
  coding_ = request_.strategy == Strategy::kAuto && CodesServeWell() ? Coding::kReuse
                                                                     : CodingOf(request_.strategy);
  if (why_not.empty() && coding_ == Coding::kReuse) why_not = ChooseCodes();
  if (why_not.empty() && coding_ == Coding::kSelective) {
    run_ = model_.selective;
    if (run_.empty()) {
      why_not = absl::StrCat("\"", model_.name, "\" has no models[].selective_layers");
    }
  }
  if (why_not.empty() && coding_ == Coding::kReuse && env_->drift->Sample()) Watch();
  if (!why_not.empty()) {
    if (request_.strategy != Strategy::kOracle) SetFallback(why_not);
    Submit();
    return;
  }
  StartHandoff();
}

std::string Session::WhyNoHandoff() const {
  if (request_.strategy == Strategy::kOracle) return "oracle was asked for";
  if (request_.request.sampling.prompt_logprobs) {
    return "log-probabilities of the prompt are computed here";
  }
  if (request_.producers.empty()) {
    const std::string& why = request_.no_producer_reason;
    return why.empty() ? "no prefill node was named" : why;
  }
  if (!env_->handoff) return "this node has no transport";
  // One block at least: its first rows are computed here.
  if (request_.prefix_tokens < kBlockTokens) return "the prompt has no shareable prefix";
  if (request_.strategy == Strategy::kAuto &&
      request_.prefix_tokens < env_->config.min_prefix_tokens) {
    return absl::StrCat("a prefix of ", request_.prefix_tokens,
                        " tokens is shorter than handoff.min_prefix_tokens, ",
                        env_->config.min_prefix_tokens);
  }
  return "";
}

bool Session::CodesServeWell() const {
  // A model that is its own base gets its very K/V.
  if (AcceptedSpace(model_).weights_digest == model_.weights_digest) return false;
  if (model_.decoders.empty()) return false;
  const auto kl = model_.decoders.front()->held_out_kl();
  return kl && *kl <= env_->config.max_kl;
}

std::string Session::ChooseCodes() {
  if (model_.decoders.empty()) {
    BATON_LOG_EVERY_SEC(60, "\"{}\" has no codec: what asks for codes is computed here",
                        model_.name);
    return absl::StrCat("no codec makes K/V of \"", model_.name, "\" (models[].codecs)");
  }
  // `reuse` promises codes of K/V alone, to be compared with; everything else takes the first.
  const auto fits = std::find_if(
      model_.decoders.begin(), model_.decoders.end(),
      [this](const auto& d) { return request_.strategy != Strategy::kReuse || OfKvAlone(*d); });
  if (fits == model_.decoders.end()) {
    return absl::StrCat("every codec of \"", model_.name,
                        "\" has patched layers or a run of layers; ask for scd");
  }
  decoder_ = *fits;
  run_ = decoder_->run();
  seam_ = request_.seam;
  if (seam_ >= request_.prefix_tokens) {
    return absl::StrCat("a seam of ", seam_, " tokens leaves nothing of the prefix of ",
                        request_.prefix_tokens);
  }
  cut_ = WholeCode(decoder_->shape());
  // What was measured for `auto` was the whole code.
  if (request_.strategy == Strategy::kAuto || env_->config.bytes_per_token == 0) return "";
  code_bytes_per_token_ = static_cast<std::uint32_t>(env_->config.bytes_per_token);
  auto cut = CutCode(decoder_->shape(), code_bytes_per_token_);
  if (!cut.ok()) return absl::StrCat("handoff.bytes_per_token: ", cut.status().message());
  cut_ = *std::move(cut);
  return "";
}

void Session::Watch() {
  EngineRequest& r = request_.request;
  if (!r.resume_tokens.empty()) return;  // their predictions were made elsewhere
  if (r.sampling.logprobs) client_top_logprobs_ = r.sampling.top_logprobs;
  r.sampling.logprobs = true;
  r.sampling.top_logprobs = std::max(r.sampling.top_logprobs, DriftMonitor::kTop);
  watched_ = {.tokens = r.tokens, .adapter = r.adapter, .served = {}};
}

void Session::KeepPredictions(TokenDelta& delta) {
  for (auto& token : delta.logprobs) {
    watched_->tokens.push_back(token.front().token_id);
    watched_->served.push_back(token);
    if (client_top_logprobs_ >= 0) {
      const auto keep = static_cast<std::size_t>(client_top_logprobs_) + 1;
      token.resize(std::min(token.size(), keep));
    }
  }
  if (client_top_logprobs_ < 0) delta.logprobs.clear();
}

void Session::StartHandoff() {
  const EngineRequest& r = request_.request;
  const std::int32_t sent = SentTokens();
  HandoffPlan plan;
  plan.request_id = r.request_id;
  plan.base_model = model_.base_model;
  plan.tokens.assign(r.tokens.begin(), r.tokens.begin() + sent);
  for (int i = 0; i < sent / kBlockTokens; ++i) {
    plan.block_hashes.push_back(r.cache.blocks[static_cast<size_t>(i)].Hex());
  }
  plan.scope = request_.scope;
  plan.producers = request_.producers;
  plan.wants = AcceptedSpace(model_);
  plan.page_layout = model_.page_layout;
  plan.coding = coding_;
  plan.decoder = decoder_;
  plan.cut = cut_;
  plan.code_bytes_per_token = code_bytes_per_token_;
  plan.deadline = deadline_;
  HandoffCallbacks callbacks;
  callbacks.on_resolved = [self = shared_from_this()](absl::StatusOr<Space> space, double rate) {
    self->OnResolved(space, rate);
  };
  callbacks.on_published = [self = shared_from_this()](const HandoffResult& r) {
    self->OnPublished(r);
  };
  callbacks.on_abandoned = [self = shared_from_this()](const absl::Status& why) {
    self->OnAbandoned(why);
  };
  auto handoff =
      Handoff::Create(env_->handoff, std::move(plan), Strand(env_->workers), std::move(callbacks));
  {
    MutexLock lock(mu_);
    handoff_ = handoff;
  }
  handoff->Resolve();
}

// Codes are made of whole blocks: of the last one the landing may want the first pages only.
std::int32_t Session::SentTokens() const {
  return (request_.prefix_tokens - seam_ + kBlockTokens - 1) / kBlockTokens * kBlockTokens;
}

std::shared_ptr<Handoff> Session::handoff() const {
  MutexLock lock(mu_);
  return handoff_;
}

void Session::FitCodesTo(double link_bytes_per_s) {
  const double target_s = std::chrono::duration<double>(env_->config.target).count();
  if (request_.strategy == Strategy::kAuto || target_s == 0 || link_bytes_per_s == 0) return;
  const double fits = target_s * link_bytes_per_s / SentTokens();
  // Few rates: a prefix is cached by the rate it came at.
  constexpr double kParts[] = {0.75, 0.5, 0.375, 0.25, 0.125};
  const double whole = cut_.bytes_per_token();
  if (fits >= whole) return;
  for (const double part : kParts) {
    const auto bytes = static_cast<std::uint32_t>(part * whole);
    auto cut = CutCode(decoder_->shape(), bytes);
    if (!cut.ok()) break;  // smaller ones do not exist
    cut_ = *std::move(cut);
    code_bytes_per_token_ = bytes;
    if (bytes <= fits) break;
  }
  if (auto h = handoff()) h->SetCut(cut_, code_bytes_per_token_);
}

void Session::OnResolved(const absl::StatusOr<Space>& space, double link_bytes_per_s) {
  if (!space.ok()) {
    if (FailsWithHandoff()) {
      End(absl::UnavailableError(absl::StrCat("hand-off failed: ", space.status().message())));
      return;
    }
    SetFallback(std::string(space.status().message()));
    Submit();
    return;
  }
  if (request_.strategy == Strategy::kAuto && coding_ == Coding::kRaw &&
      space->weights_digest != model_.weights_digest) {
    if (auto h = handoff()) h->Cancel();
    SetFallback(absl::StrCat(
        "auto takes K/V of the model's own weights, or codes that serve it well: weights_digest ",
        model_.weights_digest, ", the producer has ", space->weights_digest));
    Submit();
    return;
  }
  if (decoder_) FitCodesTo(link_bytes_per_s);
  EngineRequest& r = request_.request;
  r.handoff_end = request_.prefix_tokens - seam_;
  r.run = run_;
  r.cache.approx_space = ApproxSpace(space->weights_digest);
  Submit();
}

// What the prefix will be when it has come from a producer with these weights.
std::string Session::ApproxSpace(const std::string& weights_digest) const {
  if (coding_ == Coding::kQ4) {
    return model_.NativeDigest(Fidelity::Code(absl::StrCat("q4-", weights_digest), kQ4Bits));
  }
  if (coding_ == Coding::kSelective) {
    // Of the same weights, too: the stream was rounded.
    return model_.NativeDigest(Fidelity::Code(
        absl::StrCat("selective-", LayerRunText(run_), "-", weights_digest), kStreamBits));
  }
  if (decoder_) {
    // Blocks of another seam have other rows that were computed.
    const std::string codec =
        seam_ == 0 ? decoder_->digest() : absl::StrCat(decoder_->digest(), "-seam", seam_);
    return model_.NativeDigest(Fidelity::Code(codec, cut_.bytes_per_token()));
  }
  // K/V of the same weights in the same layout is what this model computes itself.
  if (weights_digest == model_.weights_digest) return request_.request.cache.exact_space;
  return model_.NativeDigest(Fidelity::Raw(weights_digest));
}

void Session::Submit() {
  bool ended;
  {
    MutexLock lock(mu_);
    ended = ended_;
  }
  if (ended) {
    // Cancel may have come before there was a hand-off that it could have cancelled.
    if (auto h = handoff()) h->Cancel();
    return;
  }
  auto handle = model_.engine->Submit(std::move(request_.request), shared_from_this());
  if (!handle.ok()) {
    if (auto h = handoff()) h->Cancel();
    End(handle.status());
    return;
  }
  {
    MutexLock lock(mu_);
    handle_ = *handle;
    submitted_ = true;
    if (!ended_) return;
  }
  model_.engine->Abort(*handle, absl::CancelledError("the request has ended"));
}

void Session::OnAdmitted(const Admission& admission) {
  {
    MutexLock lock(mu_);
    admitted_at_ = SteadyClock::now();
  }
  auto h = handoff();
  if (!h) return;
  if (admission.landing) {
    h->Begin(admission.landing);
  } else {
    h->Cancel();  // the cache had it all
  }
}

void Session::OnPublished(const HandoffResult& result) {
  RequestHandle handle;
  {
    MutexLock lock(mu_);
    if (ended_) return;
    handed_off_ = result;
    published_ = true;
    handoff_over_at_ = SteadyClock::now();
    handle = handle_;
  }
  model_.engine->PublishPrefix(handle);
}

void Session::OnAbandoned(const absl::Status& why) {
  RequestHandle handle;
  {
    MutexLock lock(mu_);
    if (ended_) return;
    handoff_over_at_ = SteadyClock::now();
    handle = handle_;
  }
  if (FailsWithHandoff()) {
    const auto failed = absl::UnavailableError(absl::StrCat("hand-off failed: ", why.message()));
    model_.engine->Abort(handle, failed);
    End(failed);
    return;
  }
  SetFallback(std::string(why.message()));
  BATON_LOG_EVERY_SEC(5, "computing the prefix of request {} here: {}", request_id_, why.message());
  model_.engine->AbandonPrefix(handle);
}

bool Session::FailsWithHandoff() const {
  return env_->config.on_failure == OnFailure::kFail && request_.strategy != Strategy::kAuto;
}

void Session::SetFallback(const std::string& reason) {
  env_->fallbacks.With({model_.name, StrategyName(request_.strategy)}).Increment();
  MutexLock lock(mu_);
  fallback_reason_ = reason;
}

FirstTokenStages Session::StagesLocked() const {
  FirstTokenStages s;
  const auto admitted = admitted_at_.value_or(first_token_);
  const auto over = handoff_over_at_.value_or(admitted);
  const double handoff = Seconds(over - admitted);
  double waited = 0;
  if (published_) {
    // The producer's own figures, as far as there is time for them.
    s.prefill = std::clamp(handed_off_.prefill_s, 0.0, handoff);
    waited = std::clamp(handed_off_.queue_s, 0.0, handoff - s.prefill);
  }
  s.queue = Seconds(admitted - arrival_) + waited;
  s.transfer = handoff - s.prefill - waited;
  s.suffix = Seconds(first_token_ - over);
  return s;
}

void Session::ObserveFirstToken() {
  FirstTokenStages s;
  bool handed_off;
  {
    MutexLock lock(mu_);
    if (ended_) return;  // nobody gets this token
    s = StagesLocked();
    handed_off = handoff_over_at_.has_value();
  }
  env_->ttft.With({model_.name}).Observe(Seconds(first_token_ - arrival_));
  env_->stages.With({model_.name, "queue"}).Observe(s.queue);
  if (handed_off) {
    env_->stages.With({model_.name, "prefill"}).Observe(s.prefill);
    env_->stages.With({model_.name, "transfer"}).Observe(s.transfer);
  }
  env_->stages.With({model_.name, "suffix"}).Observe(s.suffix);
}

void Session::OnTokens(TokenDelta delta) {
  const auto now = SteadyClock::now();
  if (!delta.token_ids.empty()) {
    if (!has_token_) {
      first_token_ = now;
      ObserveFirstToken();
    } else {
      env_->inter_token.With({model_.name})
          .Observe(Seconds(now - last_token_) / static_cast<double>(delta.token_ids.size()));
    }
    has_token_ = true;
    last_token_ = now;
  }
  if (watched_) KeepPredictions(delta);
  // A client that reads too slowly is given up before it fills the memory.
  if (absl::Status s = writer_->Push(MakeDelta(std::move(delta))); absl::IsResourceExhausted(s)) {
    Cancel(s);
  }
}

const char* Session::ServedName() const {
  return decoder_ && !OfKvAlone(*decoder_) ? StrategyName(Strategy::kScd) : CodingName(coding_);
}

v1::DecodeEvent Session::MakeFinished(const FinishInfo& info) {
  v1::DecodeEvent event;
  v1::DecodeEvent::Finished* out = event.mutable_finished();
  out->set_reason(ToProto(info.reason));
  out->set_stop_text(info.stop_text);
  out->set_stop_token_id(info.stop_token_id);
  v1::Usage* usage = out->mutable_usage();
  usage->set_prompt_tokens(info.prompt_tokens);
  usage->set_completion_tokens(info.completion_tokens);
  usage->set_cached_tokens(info.cached_tokens);
  usage->set_transferred_tokens(info.transferred_tokens);
  if (!want_timing_) return event;
  v1::Timing* t = out->mutable_timing();
  t->set_ttft_s(has_token_ ? Seconds(first_token_ - arrival_) : 0);
  t->set_e2e_s(Seconds(SteadyClock::now() - arrival_));
  MutexLock lock(mu_);
  if (has_token_) {
    const FirstTokenStages s = StagesLocked();
    t->set_queue_s(s.queue);
    t->set_prefill_s(s.prefill);
    t->set_transfer_s(s.transfer);
    t->set_suffix_s(s.suffix);
  }
  const bool transferred = published_ && info.transferred_tokens > 0;
  t->set_strategy(transferred ? ServedName() : "oracle");
  t->set_fallback_reason(fallback_reason_);
  if (transferred) {
    t->set_import_s(handed_off_.import_s);
    t->set_handoff_bytes(handed_off_.bytes);
    t->set_lane(handed_off_.lane);
    t->set_producer(handed_off_.producer);
    t->set_producer_cached_tokens(handed_off_.producer_cached_tokens);
  }
  return event;
}

void Session::OnFinished(const FinishInfo& info) {
  if (auto h = handoff()) h->Cancel();
  if (!info.status.ok()) {
    End(info.status);
    return;
  }
  if (watched_ && info.transferred_tokens > 0) {
    env_->drift->Replay(model_, *std::move(watched_));
    watched_.reset();
  }
  if (request_.prefix_tokens > 0) {
    const char* where = info.transferred_tokens > 0                     ? "remote"
                        : info.computed_tokens < request_.prefix_tokens ? "cache"
                                                                        : "local";
    env_->prefixes.With({where}).Increment();
  }
  env_->e2e.With({model_.name}).Observe(Seconds(SteadyClock::now() - arrival_));
  absl::Status pushed = writer_->Push(MakeFinished(info));
  End(pushed);
}

void Session::Cancel(const absl::Status& why) {
  bool abort;
  RequestHandle handle;
  {
    MutexLock lock(mu_);
    if (ended_) return;
    abort = submitted_;
    handle = handle_;
  }
  if (abort) model_.engine->Abort(handle, why);
  End(why);
  if (auto h = handoff()) h->Cancel();
}

void Session::Tick() {
  if (absl::Now() >= deadline_) {
    Cancel(absl::DeadlineExceededError("the deadline has passed"));
    return;
  }
  if (auto h = handoff()) h->Tick();
}

void Session::End(const absl::Status& status) {
  std::function<void()> on_end;
  {
    MutexLock lock(mu_);
    if (ended_) return;
    ended_ = true;
    on_end = std::exchange(on_end_, nullptr);
  }
  env_->requests.With({model_.name, Outcome(status)}).Increment();
  writer_->Finish(status);
  on_end();
}

}  // namespace baton
