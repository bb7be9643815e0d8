// Moves bytes between processes: a small header that names what the payload is, and a payload
// that lands where the receiver says. Knows nothing of frames, models or requests.
//
//   class Codes : public Receiver {
//     absl::StatusOr<std::shared_ptr<Landing>> OnHeader(std::string_view header,
//                                                       uint64_t payload_bytes, PeerId) override {
//       return FindTransfer(header, payload_bytes);  // or an error: the message is dropped
//     }
//   };
//   transport->SetReceiver(&codes);
//   auto peer = transport->Connect(address_from_grpc, incarnation_from_grpc);
//   (*peer)->Send(header, {page0, page1}, pages, [](absl::Status s) { … });
//
// Threads: every method may be called from any thread. `done`, `Receiver` and `Landing` are called
// on the transport's own progress thread and must be quick: hand long work to another thread.
// They may call Send, Close and Connect, but not SetReceiver, and must not destroy the transport.
//
// Delivery: at most once, unordered between messages. A transport neither repeats nor
// acknowledges; whoever needs either builds it above (the hand-off does, over gRPC).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace baton {

// Largest header of one message, in bytes.
inline constexpr size_t kMaxTransportHeaderBytes = 4096;

// Bytes to send, in host memory.
using ConstSpan = absl::Span<const uint8_t>;

// The sending process's `Transport::instance_id()`, as it claims: good for logs and for telling
// peers apart, never for deciding what a peer may do.
using PeerId = uint64_t;

// Called once, with OK or with why the message was not (known to be) sent.
using SendDone = absl::AnyInvocable<void(absl::Status)>;

// Where one incoming payload goes. The transport holds the object from OnHeader until OnComplete
// has returned; the memory must stay valid for exactly as long.
class Landing {
 public:
  virtual ~Landing() = default;
  // Start of `payload_bytes` writable bytes (the count given to OnHeader). Asked once; may be null
  // when the count is 0.
  virtual uint8_t* data() = 0;
  // Called exactly once. It is the fence: the transport writes not a byte after it, whatever the
  // status; before it, it may, even when the peer is known to be dead. OK: every byte is in.
  // A peer that hangs without dying can delay it until the transport is destroyed.
  virtual void OnComplete(absl::Status status) = 0;
};

// Takes what arrives. One per transport.
class Receiver {
 public:
  virtual ~Receiver() = default;
  // Looks at the header before a byte of payload lands. `header` is valid during the call only.
  // An error drops the message (the sender sees an ordinary completion) and is logged at a
  // limited rate, without the header's bytes.
  virtual absl::StatusOr<std::shared_ptr<Landing>> OnHeader(std::string_view header,
                                                            uint64_t payload_bytes,
                                                            PeerId from) = 0;
};

// The sending side of one connection. Fails once and for good; Connect makes a fresh one.
class Peer {
 public:
  virtual ~Peer() = default;

  // Queues one message: a header of 0..kMaxTransportHeaderBytes bytes and the concatenation of
  // `payload` (spans may be empty; at most the transport's limit in all). At most a window of
  // messages is in flight; the rest wait here, in order.
  //
  // `owner` keeps the payload's memory alive. The transport drops it when it will not read the
  // memory again, which is at `done` if all went well. After a failure `done` comes at once,
  // but `owner` may be held longer (a peer that hangs may still read): reuse memory when
  // `owner` is dropped, not when `done` says failed.
  //
  // `done`: OK when the payload was handed over (not: accepted by the receiver).
  // INVALID_ARGUMENT: header or payload too large. UNAVAILABLE: the connection is closed or the
  // peer died. DEADLINE_EXCEEDED: no progress within the progress deadline.
  // May be called before Send returns. May be null.
  virtual void Send(std::string header, std::vector<ConstSpan> payload,
                    std::shared_ptr<const void> owner, SendDone done) = 0;

  // How bytes travel: "posix", "tcp/eth0", "in_process", …; "unknown" before the first completed
  // message.
  virtual std::string lane() const = 0;

  // True once an error was seen or Close was called. It never turns false again.
  virtual bool failed() const = 0;

  // Why, once failed() is true; OK before.
  virtual absl::Status status() const = 0;

  // Fails the connection: queued and unfinished messages complete with `why` (which must be an
  // error). Returns at once. Closing twice is harmless.
  virtual void Close(absl::Status why) = 0;
};

// Counts since the start, and what is held now. Bytes are payload bytes.
struct TransportStats {
  uint64_t messages_sent = 0;  // completed with OK
  uint64_t bytes_sent = 0;
  uint64_t send_failures = 0;      // completed with an error
  uint64_t messages_received = 0;  // landed with OK
  uint64_t bytes_received = 0;
  uint64_t receive_failures = 0;  // landings completed with an error
  uint64_t messages_refused = 0;  // malformed, over a limit, or refused by the receiver
  uint64_t connects = 0;
  uint64_t connection_failures = 0;
  uint64_t sends_in_flight = 0;     // submitted, memory still in use
  uint64_t sends_queued = 0;        // waiting for the window
  uint64_t landings_in_flight = 0;  // landings whose fence has not come yet
  uint64_t landing_bytes_in_flight = 0;
  uint64_t peers = 0;  // live connections, incoming ones included
};

// One per process. Destroying it completes everything that is unfinished with an error.
class Transport {
 public:
  virtual ~Transport() = default;

  // What another process passes to Connect; opaque bytes, to be given to it over gRPC. It may
  // change (a lane is given up), so ask for each use; connections made with an earlier one go on.
  virtual std::string address() const = 0;

  // Name and version of what moves the bytes, e.g. "ucx 1.13.1". Compared at link time for logs.
  virtual std::string version() const = 0;

  // Random, chosen at start; what receivers see as PeerId.
  virtual PeerId instance_id() const = 0;

  // The connection to `address`, made if need be. The same (address, incarnation) gives the same
  // Peer until that fails; another incarnation at the same address closes the older one.
  // Does not wait for the other side: a peer that is gone shows at the first Send.
  // INVALID_ARGUMENT: not an address of this kind of transport. UNAVAILABLE: the transport is
  // shutting down, or the last connection there failed and its back-off has not passed.
  virtual absl::StatusOr<std::shared_ptr<Peer>> Connect(std::string_view address,
                                                        uint64_t incarnation) = 0;

  // Who takes incoming messages; null: they are dropped. On return the earlier receiver is not
  // called any more (landings it gave still complete).
  virtual void SetReceiver(Receiver* receiver) = 0;

  virtual TransportStats stats() const = 0;
};

}  // namespace baton
