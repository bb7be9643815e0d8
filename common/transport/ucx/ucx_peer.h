// One connection of the UCX transport, and one message under way. Private to this room.
#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <unordered_set>
#include <vector>

#include "common/base/mutex.h"
#include "common/transport/transport.h"

namespace baton::ucx {

class Core;
class UcxPeer;

// What stands before the user's header in every message.
struct MessagePrefix {
  static constexpr uint32_t kMagic = 0x314e5442;  // "BTN1"
  enum Kind : uint16_t {
    kData = 1,
    kHello = 2,     // body: 8-byte token, address of the sender; asks for an answer
    kHelloAck = 3,  // body: the token
    kGoodbye = 4,   // no body: the sender shuts down in order
  };
  uint32_t magic;
  uint16_t kind;
  uint16_t reserved;
  uint64_t instance;  // the sender's
};
static_assert(sizeof(MessagePrefix) == 16);

// A payload in one piece that lay in many.
struct Staging {
  std::unique_ptr<uint8_t[]> data;
  uint64_t capacity = 0;
};

// A message from submission until UCX has let go of its memory.
struct SendOp {
  std::shared_ptr<UcxPeer> peer;
  std::string header;  // prefix and user header; UCX reads it until completion
  std::vector<ucp_dt_iov_t> payload;
  Staging staging;  // what UCX reads instead of `payload`, when it was gathered
  uint64_t bytes = 0;
  std::shared_ptr<const void> owner;
  SendDone done;
  bool message = true;       // false: a sign of life, which has no window and no `done`
  bool reported = false;     // `done` was called
  bool left_behind = false;  // UCX never finishes it; `owner` was let go
  int64_t submitted_ns = 0;
};

// A payload on its way into a landing.
struct RecvOp {
  std::shared_ptr<Landing> landing;
  uint64_t bytes = 0;
  PeerId from = 0;
  std::shared_ptr<UcxPeer> peer;  // null while the sender has not introduced itself
  int64_t started_ns = 0;
  Core* core = nullptr;
};

class UcxPeer : public Peer, public std::enable_shared_from_this<UcxPeer> {
 public:
  UcxPeer(std::shared_ptr<Core> core, std::string ucx_address, uint64_t token)
      : core_(std::move(core)), ucx_address_(std::move(ucx_address)), token_(token) {}

  void Send(std::string header, std::vector<ConstSpan> payload, std::shared_ptr<const void> owner,
            SendDone done) override;
  std::string lane() const override;
  bool failed() const override { return failed_.load(std::memory_order_acquire); }
  absl::Status status() const override;
  void Close(absl::Status why) override;

  // Sets the failure; false if there was one already.
  bool MarkFailed(const absl::Status& why);
  void SetLane(std::string lane);

 private:
  friend class Core;

  const std::shared_ptr<Core> core_;
  const std::string ucx_address_;
  const uint64_t token_;  // names this connection in signs of life

  std::atomic<bool> failed_{false};
  mutable Mutex mu_;
  absl::Status status_ GUARDED_BY(mu_);
  std::string lane_ GUARDED_BY(mu_);

  // Guarded by Core's peers_mu_.
  uint64_t incarnation_ = 0;
  bool wanted_ = false;  // by a Connect; else the peer came to us

  // Progress thread only.
  ucp_ep_h endpoint_ = nullptr;
  bool torn_down_ = false;
  bool lane_known_ = false;
  bool outgoing_ = false;  // `wanted_`, as the progress thread knows it
  PeerId instance_ = 0;    // the other side's, once known
  std::deque<std::unique_ptr<SendOp>> queue_;
  std::unordered_set<SendOp*> in_flight_;  // owned by Core
  int window_used_ = 0;
  int64_t last_heard_ns_ = 0;
  int64_t last_send_progress_ns_ = 0;
  int64_t last_receive_progress_ns_ = 0;
  int64_t ping_sent_ns_ = 0;  // 0: none unanswered
  int64_t down_ns_ = 0;       // when it was torn down
  bool died_ = false;         // UCX told of its death
  bool left_ = false;         // it said goodbye
};

}  // namespace baton::ucx
