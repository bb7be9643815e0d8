// Messages: out through a window per peer, in through the receiver's choice of landing.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/fault.h"
#include "common/base/logging.h"
#include "common/transport/ucx/ucx_core.h"

namespace baton::ucx {

namespace {

// Of a large payload that lies in thousands of places UCX gets a copy in one piece: with UCX 1.13
// over TCP that takes a fifth off the receiver's time (docs/results.md) and nothing is lost here.
constexpr uint64_t kGatherBytes = 64 << 10;

}  // namespace

std::string Core::MakeHeader(MessagePrefix::Kind kind, std::string_view body) const {
  MessagePrefix prefix = {};
  prefix.magic = MessagePrefix::kMagic;
  prefix.kind = kind;
  prefix.instance = instance_;
  std::string header(reinterpret_cast<const char*>(&prefix), sizeof(prefix));
  header += body;
  return header;
}

void Core::SubmitSend(std::unique_ptr<SendOp> op) {
  UcxPeer& peer = *op->peer;
  if (peer.failed()) return Report(*op, peer.status());
  peer.queue_.push_back(std::move(op));
  counters_.sends_queued.fetch_add(1, std::memory_order_relaxed);
  Pump(peer);
}

void Core::Pump(UcxPeer& peer) {
  // Two threads may connect at once; the one that found the peer may send before the task of the
  // one that made it has opened the endpoint. That task pumps.
  if (peer.endpoint_ == nullptr) return;
  // A payload goes to UCX only when the peer has answered once: UCX 1.13 can keep requests to a
  // peer that dies while the connection is made for ever, and with them the memory they read.
  if (peer.outgoing_ && peer.instance_ == 0) return;
  while (!peer.failed() && !peer.queue_.empty() && peer.window_used_ < options_.window) {
    std::unique_ptr<SendOp> op = std::move(peer.queue_.front());
    peer.queue_.pop_front();
    counters_.sends_queued.fetch_sub(1, std::memory_order_relaxed);
    ++peer.window_used_;
    if (absl::Status fault = BATON_FAULT_POINT("transport.send"); !fault.ok()) {
      deferred_.push_back([this, fault, held = peer.shared_from_this()] {
        FailPeer(held, fault, /*reported=*/true);
      });
      --peer.window_used_;
      return Report(*op, fault);
    }
    Post(std::move(op));
  }
}

void Core::Post(std::unique_ptr<SendOp> owned) {
  SendOp* op = owned.get();
  UcxPeer& peer = *op->peer;
  op->submitted_ns = NowNs();
  sends_.emplace(op, std::move(owned));
  peer.in_flight_.insert(op);
  counters_.sends_in_flight.store(HoldingSends(), std::memory_order_relaxed);

  if (op->payload.size() > 1 && op->bytes >= kGatherBytes) Gather(*op);
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &Core::OnSent;
  params.user_data = op;
  const void* data = nullptr;
  size_t count = 0;
  if (op->payload.size() == 1) {
    data = op->payload[0].buffer;
    count = op->payload[0].length;
  } else if (!op->payload.empty()) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_DATATYPE;
    params.datatype = ucp_dt_make_iov();
    data = op->payload.data();
    count = op->payload.size();
  }
  ucs_status_ptr_t request = ucp_am_send_nbx(peer.endpoint_, kActiveMessageId, op->header.data(),
                                             op->header.size(), data, count, &params);
  if (UCS_PTR_IS_PTR(request)) return;  // OnSent follows
  const ucs_status_t status = UCS_PTR_STATUS(request);
  FinishSend(op, status == UCS_OK ? absl::OkStatus() : FromUcs(status, "can't send"));
}

void Core::Gather(SendOp& op) {
  if (!spare_staging_.empty()) {
    op.staging = std::move(spare_staging_.back());
    spare_staging_.pop_back();
  }
  if (op.staging.capacity < op.bytes) {
    op.staging = {std::make_unique_for_overwrite<uint8_t[]>(op.bytes), op.bytes};
  }
  uint8_t* to = op.staging.data.get();
  for (const ucp_dt_iov_t& piece : op.payload) {
    std::memcpy(to, piece.buffer, piece.length);
    to += piece.length;
  }
  op.payload.assign(1, {op.staging.data.get(), op.bytes});
}

void Core::OnSent(void* request, ucs_status_t status, void* user_data) {
  auto* op = static_cast<SendOp*>(user_data);
  Core* core = op->peer->core_.get();
  ucp_request_free(request);
  core->FinishSend(op, status == UCS_OK ? absl::OkStatus() : FromUcs(status, "the send failed"));
}

void Core::FinishSend(SendOp* op, absl::Status status) {
  auto node = sends_.extract(op);
  std::unique_ptr<SendOp> owned = std::move(node.mapped());
  if (owned->left_behind) --left_behind_;
  counters_.sends_in_flight.store(HoldingSends(), std::memory_order_relaxed);
  if (owned->staging.data != nullptr && spare_staging_.size() < options_.window) {
    spare_staging_.push_back(std::move(owned->staging));
  }
  const std::shared_ptr<UcxPeer> peer = owned->peer;
  peer->in_flight_.erase(op);
  peer->last_send_progress_ns_ = NowNs();
  if (owned->message) --peer->window_used_;
  if (status.ok() && owned->message && !peer->lane_known_) {
    peer->lane_known_ = true;
    deferred_.push_back([this, peer] { NoteConnected(*peer); });
  } else if (status.ok() && !owned->message && peer->lane() == kUnknownLane) {
    // An answered greeting: all that is ever sent to a peer that only sends.
    deferred_.push_back([peer] {
      if (peer->endpoint_ != nullptr) peer->SetLane(LaneOf(peer->endpoint_));
    });
  }
  if (!status.ok()) {
    if (peer->MarkFailed(status) || !peer->torn_down_) {
      deferred_.push_back([this, peer, status] { FailPeer(peer, status, /*reported=*/true); });
    }
    status = peer->status();
  }
  Report(*owned, status);
  if (!peer->queue_.empty()) deferred_.push_back([this, peer] { Pump(*peer); });
}

void Core::Report(SendOp& op, absl::Status status) {
  if (!op.message || op.reported) return;
  op.reported = true;
  if (status.ok()) {
    counters_.messages_sent.fetch_add(1, std::memory_order_relaxed);
    counters_.bytes_sent.fetch_add(op.bytes, std::memory_order_relaxed);
  } else {
    counters_.send_failures.fetch_add(1, std::memory_order_relaxed);
  }
  SendDone done = std::move(op.done);
  op.done = nullptr;
  if (done) done(std::move(status));
}

void Core::Refuse(const absl::Status& why) {
  counters_.messages_refused.fetch_add(1, std::memory_order_relaxed);
  BATON_LOG_EVERY_SEC(1, "transport: message refused: {}", why);
}

ucs_status_t Core::OnActiveMessage(void* arg, const void* header, size_t header_bytes, void* data,
                                   size_t bytes, const ucp_am_recv_param_t* param) {
  return static_cast<Core*>(arg)->OnMessage({static_cast<const char*>(header), header_bytes}, data,
                                            bytes,
                                            (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0);
}

// Returning UCS_OK lets UCX drop a rendezvous nobody received; its sender completes.
ucs_status_t Core::OnMessage(std::string_view header, void* data, size_t bytes, bool rendezvous) {
  MessagePrefix prefix;
  if (header.size() < sizeof(prefix)) {
    Refuse(absl::InvalidArgumentError(absl::StrCat("header of ", header.size(), " bytes")));
    return UCS_OK;
  }
  std::memcpy(&prefix, header.data(), sizeof(prefix));
  header.remove_prefix(sizeof(prefix));
  if (prefix.magic != MessagePrefix::kMagic || header.size() > kMaxTransportHeaderBytes) {
    Refuse(absl::InvalidArgumentError("not a message of Baton's"));
    return UCS_OK;
  }
  switch (prefix.kind) {
    case MessagePrefix::kData:
      return OnData(header, prefix.instance, data, bytes, rendezvous);
    case MessagePrefix::kHello:
      OnHello(prefix.instance, header);
      return UCS_OK;
    case MessagePrefix::kHelloAck:
      OnHelloAck(prefix.instance, header);
      return UCS_OK;
    case MessagePrefix::kGoodbye:
      OnGoodbye(prefix.instance);
      return UCS_OK;
  }
  Refuse(absl::InvalidArgumentError(absl::StrCat("message of unknown kind ", prefix.kind)));
  return UCS_OK;
}

ucs_status_t Core::OnData(std::string_view header, PeerId from, void* data, size_t bytes,
                          bool rendezvous) {
  std::shared_ptr<UcxPeer> peer;
  if (auto it = by_instance_.find(from); it != by_instance_.end()) peer = it->second.lock();
  if (peer != nullptr) peer->last_heard_ns_ = peer->last_receive_progress_ns_ = NowNs();
  const uint64_t landing_bytes = counters_.landing_bytes.load(std::memory_order_relaxed);
  if (bytes > options_.max_payload_bytes ||
      bytes > options_.max_landing_bytes - std::min(landing_bytes, options_.max_landing_bytes)) {
    Refuse(absl::ResourceExhaustedError(absl::StrCat(
        "payload of ", bytes, " bytes (limits: ", options_.max_payload_bytes, " each, ",
        options_.max_landing_bytes, " in all, ", landing_bytes, " in use)")));
    return UCS_OK;
  }
  absl::StatusOr<std::shared_ptr<Landing>> landing = absl::UnavailableError("no receiver");
  {
    MutexLock lock(receiver_mu_);
    if (receiver_ != nullptr) landing = receiver_->OnHeader(header, bytes, from);
  }
  if (landing.ok() && *landing == nullptr) landing = absl::InternalError("no landing given");
  uint8_t* target = landing.ok() ? (*landing)->data() : nullptr;
  if (landing.ok() && target == nullptr && bytes > 0) {
    (*landing)->OnComplete(absl::InternalError("a landing without memory"));
    landing = absl::InternalError("a landing without memory");
  }
  if (!landing.ok()) {
    Refuse(landing.status());
    return UCS_OK;
  }
  auto owned = std::make_unique<RecvOp>();
  RecvOp* op = owned.get();
  op->landing = *std::move(landing);
  op->core = this;
  op->bytes = bytes;
  op->from = from;
  op->peer = std::move(peer);
  op->started_ns = NowNs();
  receives_.emplace(op, std::move(owned));
  counters_.landings.fetch_add(1, std::memory_order_relaxed);
  counters_.landing_bytes.fetch_add(bytes, std::memory_order_relaxed);
  if (!rendezvous) {
    if (bytes > 0) std::memcpy(target, data, bytes);
    FinishReceive(op, absl::OkStatus());
    return UCS_OK;
  }
  ucp_request_param_t params = {};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.recv_am = &Core::OnReceived;
  params.user_data = op;
  ucs_status_ptr_t request = ucp_am_recv_data_nbx(worker_.get(), data, target, bytes, &params);
  if (!UCS_PTR_IS_PTR(request)) {
    const ucs_status_t status = UCS_PTR_STATUS(request);
    FinishReceive(op, status == UCS_OK ? absl::OkStatus() : FromUcs(status, "can't receive"));
  }
  return UCS_OK;
}

void Core::OnReceived(void* request, ucs_status_t status, size_t bytes, void* user_data) {
  auto* op = static_cast<RecvOp*>(user_data);
  ucp_request_free(request);
  absl::Status result;
  if (status != UCS_OK) {
    result = FromUcs(status, "the receive failed");
  } else if (bytes != op->bytes) {
    result = absl::DataLossError(
        absl::StrCat("received ", bytes, " bytes where ", op->bytes, " were announced"));
  }
  op->core->FinishReceive(op, std::move(result));
}

void Core::FinishReceive(RecvOp* op, absl::Status status) {
  auto node = receives_.extract(op);
  std::unique_ptr<RecvOp> owned = std::move(node.mapped());
  counters_.landings.fetch_sub(1, std::memory_order_relaxed);
  counters_.landing_bytes.fetch_sub(owned->bytes, std::memory_order_relaxed);
  if (owned->peer != nullptr) {
    owned->peer->last_heard_ns_ = owned->peer->last_receive_progress_ns_ = NowNs();
  }
  if (status.ok()) {
    counters_.messages_received.fetch_add(1, std::memory_order_relaxed);
    counters_.bytes_received.fetch_add(owned->bytes, std::memory_order_relaxed);
  } else {
    counters_.receive_failures.fetch_add(1, std::memory_order_relaxed);
    if (owned->peer != nullptr && owned->peer->failed()) status = owned->peer->status();
  }
  owned->landing->OnComplete(std::move(status));
}

TransportStats Core::stats() const {
  const auto get = [](const std::atomic<uint64_t>& c) { return c.load(std::memory_order_relaxed); };
  TransportStats s;
  s.messages_sent = get(counters_.messages_sent);
  s.bytes_sent = get(counters_.bytes_sent);
  s.send_failures = get(counters_.send_failures);
  s.messages_received = get(counters_.messages_received);
  s.bytes_received = get(counters_.bytes_received);
  s.receive_failures = get(counters_.receive_failures);
  s.messages_refused = get(counters_.messages_refused);
  s.connects = get(counters_.connects);
  s.connection_failures = get(counters_.connection_failures);
  s.sends_in_flight = get(counters_.sends_in_flight);
  s.sends_queued = get(counters_.sends_queued);
  s.landings_in_flight = get(counters_.landings);
  s.landing_bytes_in_flight = get(counters_.landing_bytes);
  s.peers = get(counters_.peers);
  return s;
}

}  // namespace baton::ucx
