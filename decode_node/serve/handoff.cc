#include "decode_node/serve/handoff.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "common/base/clock.h"
#include "common/base/fault.h"
#include "common/base/ids.h"
#include "common/base/logging.h"
#include "common/node/space_proto.h"
#include "common/rpc/call_context.h"
#include "common/weights/layer_run.h"

namespace baton {
namespace {

// A bounded set of label values.
std::string FailureReason(const absl::Status& status) {
  switch (status.code()) {
    case absl::StatusCode::kDeadlineExceeded:
      return "timeout";
    case absl::StatusCode::kUnavailable:
      return "unavailable";
    case absl::StatusCode::kFailedPrecondition:
      return "space_mismatch";
    case absl::StatusCode::kDataLoss:
      return "bad_bytes";
    case absl::StatusCode::kResourceExhausted:
      return "overload";
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kNotFound:
      return "refused";
    default:
      return "other";
  }
}

}  // namespace

std::string CheckedLane(const std::string& lane) {
  constexpr std::size_t kLongest = 64;
  constexpr std::string_view kAllowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_/,.:+-";
  const bool good = !lane.empty() && lane.size() <= kLongest &&
                    lane.find_first_not_of(kAllowed) == std::string::npos;
  return good ? lane : "unknown";
}

std::shared_ptr<Handoff> Handoff::Create(std::shared_ptr<const HandoffEnv> env, HandoffPlan plan,
                                         Strand strand, HandoffCallbacks callbacks) {
  return std::shared_ptr<Handoff>(
      new Handoff(std::move(env), std::move(plan), std::move(strand), std::move(callbacks)));
}

Handoff::Handoff(std::shared_ptr<const HandoffEnv> env, HandoffPlan plan, Strand strand,
                 HandoffCallbacks callbacks)
    : env_(std::move(env)),
      plan_(std::move(plan)),
      strand_(std::move(strand)),
      callbacks_(std::move(callbacks)),
      last_error_(absl::UnavailableError("no prefill node was named")) {}

template <typename F>
std::function<void()> Handoff::ForAttempt(F f) {
  return [weak = weak_from_this(), generation = generation_, f = std::move(f)] {
    auto self = weak.lock();
    if (!self) return;
    self->Post([generation, f](Handoff& h) {
      if (h.state_ == State::kReceiving && h.generation_ == generation) f(h);
    });
  };
}

void Handoff::Resolve() {
  Post([](Handoff& h) {
    if (h.state_ != State::kIdle) return;
    h.state_ = State::kLinking;
    h.Link();
  });
}

// Asks for a link to the current producer; when none is left, the state's own end.
void Handoff::Link() {
  if (producer_ >= plan_.producers.size()) {
    if (state_ == State::kReceiving) {
      Abandon();
      return;
    }
    auto on_resolved = std::move(callbacks_.on_resolved);
    Finish();
    on_resolved(last_error_, 0);
    return;
  }
  env_->links.Get(plan_.producers[producer_], plan_.base_model, plan_.wants,
                  [self = shared_from_this(), producer = producer_](ProducerLinks::Result result) {
                    self->Post([producer, result = std::move(result)](Handoff& h) mutable {
                      h.OnLinked(producer, std::move(result));
                    });
                  });
}

void Handoff::OnLinked(std::size_t producer, ProducerLinks::Result result) {
  if (producer != producer_ || (state_ != State::kLinking && state_ != State::kReceiving)) return;
  if (!result.ok()) {
    last_error_ = result.status();
    env_->failures.With({CodingName(plan_.coding), FailureReason(last_error_)}).Increment();
    BATON_LOG_EVERY_SEC(5, "cannot use {}", last_error_.message());
    NextProducer();
    return;
  }
  link_ = *std::move(result);
  if (state_ == State::kLinking) {
    state_ = State::kResolved;
    space_ = link_->space;
    auto on_resolved = std::move(callbacks_.on_resolved);
    on_resolved(*space_, link_->meter->bytes_per_s());
    return;
  }
  // The fidelity of what is being admitted was set by the first producer's weights.
  if (link_->space.Digest() != space_->Digest()) {
    last_error_ = absl::FailedPreconditionError(absl::StrCat(
        "producer ", link_->address, ": ", CompareSpaces(*space_, link_->space).message()));
    NextProducer();
    return;
  }
  OpenCall();
}

void Handoff::SetCut(CodeCut cut, std::uint32_t code_bytes_per_token) {
  Post([cut = std::move(cut), code_bytes_per_token](Handoff& h) mutable {
    if (h.state_ != State::kResolved) return;
    h.plan_.cut = std::move(cut);
    h.plan_.code_bytes_per_token = code_bytes_per_token;
  });
}

void Handoff::Begin(std::shared_ptr<PrefixLanding> landing) {
  Post([landing = std::move(landing)](Handoff& h) mutable {
    if (h.state_ != State::kResolved) return;
    h.state_ = State::kReceiving;
    h.landing_ = std::move(landing);
    h.transfer_id_ = RandomId64();
    h.begin_ = h.last_sign_ = SteadyClock::now();
    h.OpenCall();
  });
}

v1::StartRequest Handoff::MakeStart(const std::string& secret) const {
  v1::StartRequest start;
  start.set_request_id(plan_.request_id);
  start.set_base_model(plan_.base_model);
  start.mutable_token_ids()->Add(plan_.tokens.begin(), plan_.tokens.end());
  start.set_first_token(static_cast<std::uint32_t>(landing_->begin));
  start.set_scope(plan_.scope);
  for (const std::string& hash : plan_.block_hashes) start.add_block_hashes(hash);
  *start.mutable_wants() = ToProto(*space_);
  start.set_strategy(CodingName(plan_.coding));
  start.set_transfer_id(transfer_id_);
  start.set_generation(generation_);
  start.set_secret(secret);
  start.set_transport_address(env_->transport_address());
  start.set_decode_incarnation(env_->incarnation);
  if (plan_.coding == Coding::kSelective) start.set_run_layers(LayerRunText(landing_->run));
  if (plan_.decoder) {
    start.set_encoder(plan_.decoder->encoder_digest());
    start.set_code_bytes_per_token(plan_.code_bytes_per_token);
  }
  return start;
}

// The transfer is registered before the call is opened: frames may overtake its first message.
void Handoff::OpenCall() {
  done_.reset();
  producer_cached_ = 0;
  last_sign_ = SteadyClock::now();
  if (absl::Status s = BATON_FAULT_POINT("decode.before_start"); !s.ok()) {
    FailAttempt(s);
    return;
  }
  const std::string secret = RandomBytes(kFrameSecretBytes);
  IncomingSpec spec{transfer_id_,      generation_,  *MakeFrameSecret(secret),
                    plan_.page_layout, plan_.coding, landing_,
                    plan_.decoder,     plan_.cut};
  IncomingCallbacks frames;
  frames.on_rows = ForAttempt([](Handoff& h) { h.PublishIfComplete(); });
  frames.on_error = [weak = weak_from_this(), generation = generation_](absl::Status status) {
    if (auto self = weak.lock()) {
      self->Post([generation, status = std::move(status)](Handoff& h) {
        if (h.state_ == State::kReceiving && h.generation_ == generation) h.FailAttempt(status);
      });
    }
  };
  incoming_ = env_->receiver.Register(spec, std::move(frames));

  auto context = std::make_unique<grpc::ClientContext>();
  SetDeadline(*context,
              std::min(plan_.deadline, absl::Now() + absl::FromChrono(env_->config.timeout)));
  SetRequestId(*context, plan_.request_id);
  ClientStreamCallbacks<v1::StartEvent> callbacks;
  callbacks.on_message = [self = shared_from_this(), generation = generation_](v1::StartEvent& e) {
    self->Post([generation, event = std::move(e)](Handoff& h) {
      if (h.state_ == State::kReceiving && h.generation_ == generation) h.OnEvent(event);
    });
  };
  callbacks.on_done = [self = shared_from_this(), generation = generation_](absl::Status status) {
    self->Post([generation, status = std::move(status)](Handoff& h) {
      if (h.state_ == State::kReceiving && h.generation_ == generation) h.OnCallDone(status);
    });
  };
  call_ = Call::Start(
      std::move(context), MakeStart(secret),
      [stub = link_->stub](auto* c, auto* request, auto* reactor) {
        stub->async()->Start(c, request, reactor);
      },
      std::move(callbacks));
}

void Handoff::OnEvent(const v1::StartEvent& event) {
  last_sign_ = SteadyClock::now();
  if (event.has_accepted()) {
    producer_cached_ = event.accepted().cached_tokens();
    if (event.accepted().incarnation() != link_->node.incarnation()) {
      env_->links.Drop(link_);  // restarted; what it sends was compared again at Start
    }
  }
  if (event.has_done()) {
    done_ = event.done();
    PublishIfComplete();
  }
}

// An OK end before the last frame's rows are in is normal: frames and stream are not ordered.
void Handoff::OnCallDone(const absl::Status& status) {
  call_.reset();
  if (!status.ok()) {
    FailAttempt(status);
  } else if (!done_) {
    FailAttempt(absl::InternalError("the producer ended the stream without Done"));
  }
}

void Handoff::PublishIfComplete() {
  if (!done_) return;
  const IncomingProgress progress = incoming_->progress();
  if (progress.frames > done_->frames() ||
      (progress.frames == done_->frames() && !progress.complete)) {
    FailAttempt(absl::DataLossError(absl::StrCat("the producer sent ", done_->frames(), " frames, ",
                                                 progress.frames, " came in, the prefix is ",
                                                 progress.complete ? "complete" : "incomplete")));
    return;
  }
  if (progress.frames < done_->frames()) return;
  if (absl::Status s = BATON_FAULT_POINT("decode.before_publish"); !s.ok()) {
    FailAttempt(s);
    return;
  }
  link_->meter->Observe(progress.bytes, done_->busy_s());
  HandoffResult result;
  result.producer = link_->node.name();
  result.lane = CheckedLane(done_->lane());
  result.queue_s = done_->queue_s();
  result.prefill_s = done_->prefill_s();
  result.import_s = progress.import_s;
  result.bytes = progress.bytes;
  // No more than there was, whatever a producer claims.
  result.producer_cached_tokens =
      std::min(producer_cached_, static_cast<std::uint32_t>(plan_.tokens.size()));
  env_->seconds.With({CodingName(plan_.coding), result.lane})
      .Observe(Seconds(SteadyClock::now() - begin_));
  env_->bytes.With({CodingName(plan_.coding), result.lane})
      .Increment(static_cast<double>(result.bytes));
  auto on_published = std::move(callbacks_.on_published);
  Finish();
  on_published(result);
}

void Handoff::FailAttempt(const absl::Status& status) {
  last_error_ = absl::Status(status.code(),
                             absl::StrCat("producer ", link_->address, ": ", status.message()));
  env_->failures.With({CodingName(plan_.coding), FailureReason(status)}).Increment();
  BATON_LOG_EVERY_SEC(5, "hand-off of request {} failed: {}", plan_.request_id,
                      last_error_.message());
  // Refusals of this request say nothing about the producer.
  if (!absl::IsInvalidArgument(status) && !absl::IsResourceExhausted(status)) {
    env_->links.Drop(link_);
  }
  StopAttempt();
  if (SteadyClock::now() - begin_ >= env_->config.timeout) {
    Abandon();
    return;
  }
  NextProducer();
}

void Handoff::NextProducer() {
  ++producer_;
  ++generation_;
  link_.reset();
  last_sign_ = SteadyClock::now();
  Link();
}

void Handoff::Abandon() {
  auto on_abandoned = std::move(callbacks_.on_abandoned);
  Finish();
  on_abandoned(last_error_);
}

void Handoff::Cancel() {
  Post([](Handoff& h) {
    if (h.state_ != State::kOver) h.Finish();
  });
}

void Handoff::Tick() {
  if (!over_) Post([](Handoff& h) { h.CheckClocks(); });
}

void Handoff::CheckClocks() {
  if (state_ != State::kReceiving || !incoming_) return;
  const auto now = SteadyClock::now();
  const auto sign = std::max(last_sign_, incoming_->progress().last_frame);
  if (now - sign >= env_->config.progress_timeout) {
    FailAttempt(absl::DeadlineExceededError(absl::StrCat(
        "no frame and no sign of life for ", env_->config.progress_timeout.count(), " ms")));
  } else if (now - begin_ >= env_->config.timeout) {
    FailAttempt(absl::DeadlineExceededError(
        absl::StrCat("not complete within ", env_->config.timeout.count(), " ms")));
  }
}

// Nothing writes into the landing when this returns.
void Handoff::StopAttempt() {
  if (incoming_) env_->receiver.Close(incoming_);
  incoming_.reset();
  if (call_) call_->Cancel();
  call_.reset();
}

void Handoff::Finish() {
  state_ = State::kOver;
  over_ = true;
  StopAttempt();
  landing_.reset();
  callbacks_ = {};
}

}  // namespace baton
