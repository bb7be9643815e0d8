// Endpoints: made at Connect or when a peer introduces itself, closed at the first failure.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/transport/ucx/ucx_core.h"

namespace baton::ucx {
namespace {

// The endpoint of a dead peer stays for a moment, so that what the peer still sent finds it. A
// precaution: it alone did not end the aborts seen when peers die while being connected to
// (CONN_NB in ucx_util.cc did), and it was not measured without.
constexpr int64_t kLingerNs = 100'000'000;

}  // namespace

absl::StatusOr<std::shared_ptr<Peer>> Core::Connect(std::string_view address,
                                                    uint64_t incarnation) {
  BATON_ASSIGN_OR_RETURN(std::string raw, UnwrapAddress(address));
  std::shared_ptr<UcxPeer> peer, replaced;
  bool fresh = false;
  {
    MutexLock lock(peers_mu_);
    if (closed_) return absl::UnavailableError("the transport is shutting down");
    std::shared_ptr<UcxPeer>& slot = by_address_[raw];
    if (slot != nullptr && slot->wanted_ && slot->incarnation_ != incarnation) {
      replaced = std::move(slot);
      slot = nullptr;
    }
    if (slot != nullptr && !slot->failed()) {
      peer = slot;
      if (peer->wanted_) return std::shared_ptr<Peer>(peer);
    } else {
      const auto backoff = backoff_.find(raw);
      const int64_t wait = backoff == backoff_.end() ? 0 : backoff->second.until_ns - NowNs();
      if (wait > 0 && replaced == nullptr) {
        if (slot == nullptr) by_address_.erase(raw);
        return absl::UnavailableError(absl::StrCat(
            "the last connection there failed; next attempt in ", wait / 1'000'000 + 1, " ms"));
      }
      peer = std::make_shared<UcxPeer>(shared_from_this(), raw, RandomId64());
      slot = peer;
      fresh = true;
    }
    peer->wanted_ = true;
    peer->incarnation_ = incarnation;
  }
  if (replaced != nullptr) replaced->Close(absl::UnavailableError("the peer restarted"));
  counters_.connects.fetch_add(1, std::memory_order_relaxed);
  Submit([this, peer, fresh] {
    if (peer->failed() || !OnProgressThread()) return;
    peer->outgoing_ = true;
    if (fresh) OpenEndpoint(peer);
    if (peer->failed()) return;
    SendHello(peer);
    Pump(*peer);
  });
  return std::shared_ptr<Peer>(peer);
}

void Core::SetReceiver(Receiver* receiver) {
  MutexLock lock(receiver_mu_);
  receiver_ = receiver;
}

void Core::OpenEndpoint(const std::shared_ptr<UcxPeer>& peer) {
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer->ucx_address_.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &Core::OnEndpointError;
  params.err_handler.arg = peer.get();
  peer->last_heard_ns_ = NowNs();
  if (ucs_status_t s = ucp_ep_create(worker_.get(), &params, &peer->endpoint_); s != UCS_OK) {
    peer->endpoint_ = nullptr;
    return FailPeer(peer, FromUcs(s, "can't reach the peer"), /*reported=*/true);
  }
  peers_.insert(peer);
  counters_.peers.store(peers_.size(), std::memory_order_relaxed);
}

void Core::OnEndpointError(void* arg, ucp_ep_h endpoint, ucs_status_t status) {
  // The peer outlives its endpoint: peers_, leaving_ or closing_ holds it.
  auto* peer = static_cast<UcxPeer*>(arg);
  Core* core = peer->core_.get();
  const absl::Status why = FromUcs(status, "the connection failed");
  peer->MarkFailed(why);
  core->deferred_.push_back([core, why, held = peer->shared_from_this()] {
    core->LeaveSharedMemory(*held);
    core->FailPeer(held, why, /*reported=*/held->outgoing_);
  });
}

void Core::FailPeer(const std::shared_ptr<UcxPeer>& peer, const absl::Status& why, bool reported) {
  peer->MarkFailed(why);
  if (!OnProgressThread() || peer->torn_down_) return;
  peer->torn_down_ = true;
  peer->down_ns_ = NowNs();
  const absl::Status status = peer->status();
  // The callers learn at once; the memory of what is in flight stays until UCX lets go of it.
  for (SendOp* op : peer->in_flight_) Report(*op, status);
  while (!peer->queue_.empty()) {
    std::unique_ptr<SendOp> op = std::move(peer->queue_.front());
    peer->queue_.pop_front();
    counters_.sends_queued.fetch_sub(1, std::memory_order_relaxed);
    Report(*op, status);
  }
  if (reported) {
    counters_.connection_failures.fetch_add(1, std::memory_order_relaxed);
    BATON_LOG_EVERY_SEC(1, "transport: connection to peer {:016x} over {} failed: {}",
                        peer->instance_, peer->lane(), status);
  }
  Forget(peer, reported);
  if (peer->endpoint_ == nullptr) return;
  peers_.erase(peer);
  counters_.peers.store(peers_.size(), std::memory_order_relaxed);
  const bool died = reported && absl::IsUnavailable(status);
  peer->died_ = died;
  if (reported) LeaveSharedMemory(*peer);
  const int64_t patience = died       ? kLingerNs
                           : reported ? 0
                                      : absl::ToInt64Nanoseconds(options_.progress_deadline);
  leaving_.push_back({peer, NowNs() + patience, /*drain=*/!reported});
}

bool Core::Receiving(const std::shared_ptr<UcxPeer>& peer) const {
  return std::any_of(receives_.begin(), receives_.end(), [&](const auto& entry) {
    return entry.first->peer == nullptr || entry.first->peer == peer;
  });
}

void Core::Forget(const std::shared_ptr<UcxPeer>& peer, bool reported) {
  MutexLock lock(peers_mu_);
  if (auto it = by_address_.find(peer->ucx_address_);
      it != by_address_.end() && it->second == peer) {
    by_address_.erase(it);
  }
  if (!reported || !peer->wanted_) return;
  Backoff& backoff = backoff_[peer->ucx_address_];
  const absl::Duration wait = std::min(
      options_.backoff_max, options_.backoff_initial * (1 << std::min(backoff.failures, 16)));
  ++backoff.failures;
  backoff.until_ns = NowNs() + absl::ToInt64Nanoseconds(wait);
}

void Core::CloseEndpoint(const std::shared_ptr<UcxPeer>& peer, bool force) {
  ucp_request_param_t params = {};
  if (force) {
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
  }
  ucs_status_ptr_t request = ucp_ep_close_nbx(peer->endpoint_, &params);
  peer->endpoint_ = nullptr;
  if (UCS_PTR_IS_PTR(request)) closing_.emplace_back(request, peer);
}

void Core::ReapClosing(int64_t now_ns) {
  std::erase_if(leaving_, [&](const Leaving& entry) {
    const bool drained = entry.drain && entry.peer->in_flight_.empty() && !Receiving(entry.peer);
    if (!drained && entry.force_at_ns > now_ns) return false;
    CloseEndpoint(entry.peer, /*force=*/!drained);
    return true;
  });
  std::erase_if(closing_, [](const auto& entry) {
    if (ucp_request_check_status(entry.first) == UCS_INPROGRESS) return false;
    ucp_request_free(entry.first);
    return true;
  });
}

void Core::SendHello(const std::shared_ptr<UcxPeer>& peer) {
  std::string body(reinterpret_cast<const char*>(&peer->token_), sizeof(peer->token_));
  // The whole address, whatever address() says: both directions of a connection must choose the
  // same lanes, or UCX ends the process ("endpoint reconfiguration not supported").
  body += address_;
  peer->ping_sent_ns_ = NowNs();
  auto op = std::make_unique<SendOp>();
  op->peer = peer;
  op->header = MakeHeader(MessagePrefix::kHello, body);
  op->message = false;
  Post(std::move(op));
}

void Core::OnHello(PeerId from, std::string_view body) {
  uint64_t token;
  if (body.size() <= sizeof(token)) {
    return Refuse(absl::InvalidArgumentError("a greeting without an address"));
  }
  std::memcpy(&token, body.data(), sizeof(token));
  absl::StatusOr<std::string> raw = UnwrapAddress(body.substr(sizeof(token)));
  if (!raw.ok()) return Refuse(raw.status());
  deferred_.push_back([this, from, token, raw = *std::move(raw)] {
    std::shared_ptr<UcxPeer> peer;
    bool fresh = false;
    {
      MutexLock lock(peers_mu_);
      if (closed_) return;
      std::shared_ptr<UcxPeer>& slot = by_address_[raw];
      if (slot == nullptr || slot->failed()) {
        slot = std::make_shared<UcxPeer>(shared_from_this(), raw, RandomId64());
        fresh = true;
      }
      peer = slot;
    }
    if (fresh) OpenEndpoint(peer);
    // A Connect may have put it there and not have reached this thread yet.
    if (peer->failed() || peer->endpoint_ == nullptr) return;
    peer->instance_ = from;
    peer->last_heard_ns_ = NowNs();
    by_instance_[from] = peer;
    Pump(*peer);
    auto op = std::make_unique<SendOp>();
    op->peer = peer;
    op->header = MakeHeader(MessagePrefix::kHelloAck,
                            {reinterpret_cast<const char*>(&token), sizeof(token)});
    op->message = false;
    Post(std::move(op));
  });
}

void Core::OnHelloAck(PeerId from, std::string_view body) {
  uint64_t token;
  if (body.size() != sizeof(token)) {
    return Refuse(absl::InvalidArgumentError("an answer of the wrong size"));
  }
  std::memcpy(&token, body.data(), sizeof(token));
  for (const auto& peer : peers_) {
    if (peer->token_ != token) continue;
    peer->instance_ = from;
    peer->ping_sent_ns_ = 0;
    peer->last_heard_ns_ = NowNs();
    by_instance_[from] = peer;
    deferred_.push_back([this, peer] { Pump(*peer); });
    return;
  }
}

void Core::SendGoodbye(const std::shared_ptr<UcxPeer>& peer) {
  auto op = std::make_unique<SendOp>();
  op->peer = peer;
  op->header = MakeHeader(MessagePrefix::kGoodbye, {});
  op->message = false;
  Post(std::move(op));
}

void Core::OnGoodbye(PeerId from) {
  for (const auto& peer : peers_) {
    if (peer->instance_ == from) peer->left_ = true;
  }
}

// A process that dies or hangs while it writes to our queue in shared memory may leave the queue
// blocked (UCX 1.13: 4 of about 45 kills), and with it everybody who comes that way. Whether it did
// can't be seen, so from now on peers are told of the network alone.
void Core::LeaveSharedMemory(const UcxPeer& lost) {
  const bool wrote = lost.instance_ != 0;  // a stranger has sent us nothing
  if (network_address_.empty() || !wrote || lost.left_) return;
  if (!MayUseSharedMemory(lost.lane())) return;
  if (network_only_.exchange(true)) return;
  BATON_LOG_WARN(
      "transport: a peer was lost over shared memory, which may be blocked now; new connections to "
      "this process use the network until it restarts");
}

void Core::NoteConnected(UcxPeer& peer) {
  if (peer.failed() || peer.endpoint_ == nullptr) return;
  peer.SetLane(LaneOf(peer.endpoint_));
  if (peer.outgoing_) BATON_LOG_INFO("transport: connected over {}", peer.lane());
  MutexLock lock(peers_mu_);
  backoff_.erase(peer.ucx_address_);
}

}  // namespace baton::ucx
