#include "prefill_node/service.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/fault.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/node/space_proto.h"
#include "common/rpc/call_context.h"
#include "common/rpc/status.h"

namespace baton {
namespace {

using SteadyClock = std::chrono::steady_clock;

v1::StartEvent MakeDone(const TransferSummary& s) {
  v1::StartEvent event;
  v1::StartEvent::Done* done = event.mutable_done();
  done->set_queue_s(s.queue_s);
  done->set_prefill_s(s.prefill_s);
  done->set_send_s(s.send_s);
  done->set_busy_s(s.busy_s);
  done->set_bytes(s.bytes);
  done->set_lane(s.lane);
  done->set_computed_tokens(s.computed_tokens);
  done->set_frames(s.frames);
  return event;
}

std::string Outcome(const absl::Status& status) {
  if (status.ok()) return "ok";
  return absl::IsCancelled(status) ? "aborted" : "failed";
}

}  // namespace

PrefillService::PrefillService(PrefillServiceOptions options, ModelHost& host, Transport* transport,
                               std::shared_ptr<WorkerPool> workers,
                               std::unique_ptr<CodeSpill> spill, MetricRegistry& metrics)
    : options_(std::move(options)),
      host_(host),
      transport_(transport),
      workers_(std::move(workers)),
      producer_(host),
      code_store_(options_.handoff.code_store_bytes, metrics, std::move(spill)),
      transfers_total_(metrics.AddCounterFamily("baton_prefill_transfers_total",
                                                "Transfers ended, by outcome.", {"outcome"})),
      bytes_total_(metrics.AddCounterFamily("baton_handoff_bytes_total", "Payload of hand-offs.",
                                            {"strategy", "lane"})),
      seconds_(metrics.AddHistogramFamily(
          "baton_handoff_seconds", "First frame of a transfer to its last.", {"strategy", "lane"})),
      waits_(metrics.AddCounter("baton_prefill_coding_waits_total",
                                "Transfers that waited for codes another one was making.")),
      live_gauge_(metrics.AddGaugeCallback("baton_prefill_transfers_live",
                                           "Transfers that have not ended.",
                                           [this] { return double(live_transfers()); })) {}

grpc::ServerUnaryReactor* PrefillService::Link(grpc::CallbackServerContext* context,
                                               const v1::LinkRequest* request,
                                               v1::LinkResponse* response) {
  auto* reactor = context->DefaultReactor();
  auto model = producer_.CheckLink(*request);
  if (!model.ok()) {
    BATON_LOG_EVERY_SEC(5, "refused link from \"{}\": {}", request->from().name(), model.status());
    reactor->Finish(ToGrpcStatus(model.status()));
    return reactor;
  }
  *response->mutable_node() = MakeIdentity(options_.node_name, options_.incarnation, "prefill");
  *response->mutable_space() = ToProto(Producer::SpaceOf(**model));
  if (transport_ != nullptr) {
    response->set_transport_address(transport_->address());
    response->set_transport_version(transport_->version());
  }
  BATON_LOG_INFO("linked with \"{}\" ({}, protocol {}, transport {}) for \"{}\"",
                 request->from().name(), request->from().version(), request->from().protocol(),
                 request->transport_version(), (*model)->name);
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<v1::StartEvent>* PrefillService::Start(
    grpc::CallbackServerContext* context, const v1::StartRequest* request) {
  auto writer = Writer::Create();
  const std::string id =
      IsValidRequestId(request->request_id()) ? request->request_id() : RequestIdOf(*context);
  if (absl::Status s = StartTransfer(*request, id, writer); !s.ok()) {
    BATON_RLOG_WARN(id, "refused transfer: {}", s);
    writer->Finish(s);
  }
  return writer->reactor();
}

absl::Status PrefillService::StartTransfer(const v1::StartRequest& request,
                                           const std::string& request_id,
                                           const std::shared_ptr<Writer>& writer) {
  if (draining_) return absl::UnavailableError("the prefill node is draining");
  BATON_RETURN_IF_ERROR(BATON_FAULT_POINT("producer.before_accept"));
  BATON_ASSIGN_OR_RETURN(PrefillJob job, producer_.Check(request));
  if (transport_ == nullptr) {
    return absl::UnavailableError("this prefill node has no transport: it serves no hand-off");
  }
  BATON_ASSIGN_OR_RETURN(
      std::shared_ptr<Peer> peer,
      transport_->Connect(request.transport_address(), request.decode_incarnation()));
  job.request.request_id = request_id;
  TransferParams params;
  params.request_id = request_id;
  params.transfer_id = request.transfer_id();
  params.generation = request.generation();
  params.secret = job.secret;
  params.page_layout = job.model->page_layout;
  params.coding = job.coding;
  params.first_token = job.first_token;
  params.prefix_tokens = static_cast<std::int32_t>(job.request.tokens.size());
  params.frame_bytes = options_.handoff.frame_bytes;
  params.window = options_.handoff.window;
  if (job.codes) {
    if (!options_.handoff.code_ahead || options_.handoff.code_store_bytes == 0) {
      job.codes->others.clear();
      job.codes->turn = job.codes->space;
    }
    params.coder = std::make_shared<BlockCoder>(*std::move(job.codes), code_store_);
  }
  const std::shared_ptr<BlockCoder> coder = params.coder;

  std::uint64_t key;
  {
    MutexLock lock(mu_);
    key = next_key_++;
  }
  TransferCallbacks callbacks;
  callbacks.on_admitted = [writer, incarnation = options_.incarnation](const Admission& a) {
    v1::StartEvent event;
    event.mutable_accepted()->set_incarnation(incarnation);
    event.mutable_accepted()->set_cached_tokens(static_cast<std::uint32_t>(a.cached_tokens));
    (void)writer->Push(std::move(event));  // a closed stream aborts through its own callback
  };
  callbacks.on_end = [this, key, writer](const absl::Status& s, const TransferSummary& summary) {
    OnEnd(key, writer, s, summary);
  };
  auto sender = std::make_shared<CodeSender>(std::move(params), *job.model->engine, std::move(peer),
                                             workers_, std::move(callbacks));
  {
    const auto now = SteadyClock::now();
    MutexLock lock(mu_);
    transfers_[key] = {sender, writer, coder, now + options_.handoff.heartbeat,
                       now + options_.handoff.lease};
  }
  writer->SetOnCancel([sender] { sender->Abort(absl::CancelledError("the decode node left")); });
  Work work = {job.model->engine, std::move(job.request), sender, coder};
  const bool may_wait = options_.handoff.code_store_bytes > 0;
  if (!coder) {
    Submit(std::move(work));
  } else if (code_store_.reads_files()) {
    PostCoding(std::move(work), may_wait);
  } else {
    StartCoding(std::move(work), may_wait);
  }
  return absl::OkStatus();
}

void PrefillService::PostCoding(Work work, bool may_wait) {
  auto posted = std::make_shared<Work>(std::move(work));
  workers_->Post([this, posted, may_wait] {
    if (!posted->sender->ended()) StartCoding(std::move(*posted), may_wait);
  });
}

void PrefillService::StartCoding(Work work, bool may_wait) {
  BlockCoder& coder = *work.coder;
  const std::uint64_t turns_ended = turns_.ended();
  coder.LookUp();
  std::unique_ptr<CodingTurns::Turn> turn;
  if (may_wait && !coder.all_stored()) {
    turn = turns_.Take(coder.missing(), [this, work] { PostCoding(work, /*may_wait=*/false); });
    if (!turn) {
      waits_.Increment();
      return;
    }
    // What we missed may have been coded between the look and the turn.
    if (turns_.ended() != turns_ended) coder.LookUp();
  }
  work.sender->SendStored();
  if (coder.all_stored()) {
    Admission all_stored;
    all_stored.cached_tokens = coder.next_row();
    work.sender->OnAdmitted(all_stored);
    work.sender->FinishWithoutEngine();
    return;
  }
  coder.HoldTurn(std::move(turn));
  work.request.report_from = coder.next_row();
  const auto sender = work.sender;
  Submit(std::move(work));
  if (sender->ended()) coder.EndTurn();  // its end may have come before the turn
}

void PrefillService::Submit(Work work) {
  auto handle = work.engine->Submit(std::move(work.request), work.sender);
  if (!handle.ok()) {
    work.sender->Abort(handle.status());  // finishes the writer and leaves the table
    return;
  }
  work.sender->SetHandle(*handle);
}

void PrefillService::OnEnd(std::uint64_t key, const std::shared_ptr<Writer>& writer,
                           absl::Status status, const TransferSummary& summary) {
  if (status.ok()) status = BATON_FAULT_POINT("producer.before_done");
  Transfer ended;  // its references go outside the lock
  {
    MutexLock lock(mu_);
    if (auto it = transfers_.find(key); it != transfers_.end()) {
      ended = std::move(it->second);
      transfers_.erase(it);
    }
  }
  if (ended.coder) ended.coder->EndTurn();
  transfers_total_.With({Outcome(status)}).Increment();
  if (summary.bytes > 0) {
    bytes_total_.With({CodingName(summary.coding), summary.lane.empty() ? "unknown" : summary.lane})
        .Increment(static_cast<double>(summary.bytes));
  }
  if (status.ok()) {
    seconds_.With({CodingName(summary.coding), summary.lane}).Observe(summary.send_s);
    if (absl::Status s = writer->Push(MakeDone(summary)); !s.ok()) {
      writer->Finish(s);
      return;
    }
  }
  writer->Finish(status);
}

grpc::ServerUnaryReactor* PrefillService::Info(grpc::CallbackServerContext* context,
                                               const v1::PrefillInfoRequest* request,
                                               v1::PrefillInfo* response) {
  *response->mutable_node() = MakeIdentity(options_.node_name, options_.incarnation, "prefill");
  for (const HostedModel& m : host_.models()) {
    v1::PrefillModel* model = response->add_models();
    model->set_name(m.name);
    *model->mutable_space() = ToProto(Producer::SpaceOf(m));
    model->set_max_context_tokens(static_cast<std::uint32_t>(m.max_context));
  }
  const ModelHost::Totals totals = host_.GetTotals();
  response->set_running(static_cast<std::uint32_t>(totals.running));
  response->set_waiting(static_cast<std::uint32_t>(totals.waiting));
  response->set_kv_pages_held(static_cast<std::uint64_t>(totals.pages_held));
  response->set_kv_pages_total(static_cast<std::uint64_t>(totals.pages_total));
  response->set_draining(draining_);
  auto* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

// A heartbeat that was written shows that somebody reads; one that stays queued lets the lease run.
void PrefillService::Tick() {
  std::vector<std::pair<std::shared_ptr<Writer>, v1::StartEvent>> beats;
  std::vector<std::shared_ptr<CodeSender>> expired;
  {
    const auto now = SteadyClock::now();
    MutexLock lock(mu_);
    for (auto& [key, t] : transfers_) {
      if (now >= t.lease_end) {
        expired.push_back(t.sender);
      } else if (now >= t.next_heartbeat) {
        t.next_heartbeat = now + options_.handoff.heartbeat;
        if (t.writer->queued() > 0) continue;
        t.lease_end = now + options_.handoff.lease;
        v1::StartEvent event;
        event.mutable_heartbeat()->set_layers_sent(t.sender->frames_sent());
        beats.emplace_back(t.writer, std::move(event));
      }
    }
  }
  for (auto& [writer, event] : beats) (void)writer->Push(std::move(event));
  for (const auto& sender : expired) {
    BATON_LOG_EVERY_SEC(5, "a transfer's lease ran out: the decode node does not read");
    sender->Abort(absl::DeadlineExceededError("the lease of the transfer ran out"));
  }
}

void PrefillService::AbortAll(const absl::Status& why) {
  std::vector<std::shared_ptr<CodeSender>> senders;
  {
    MutexLock lock(mu_);
    for (auto& [key, t] : transfers_) senders.push_back(t.sender);
  }
  for (const auto& sender : senders) sender->Abort(why);
}

std::size_t PrefillService::live_transfers() const {
  MutexLock lock(mu_);
  return transfers_.size();
}

}  // namespace baton
