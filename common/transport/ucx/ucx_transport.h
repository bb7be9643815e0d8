// The Transport over UCX active messages: shared memory on one host, TCP anywhere, and whatever
// RDMA or GPU lanes the installed UCX has. No remote keys: the receiver decides where bytes land.
//
// One progress thread owns the UCP context, worker and endpoints; everybody else submits to it
// through a queue. It spins briefly, then sleeps in epoll. The reasons for what it does are
// measured in shared/design/transport.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/transport/transport.h"

namespace baton {

struct UcxOptions {
  // UCX_TLS: transports UCX may use, e.g. {"posix", "tcp"}; add "cma", "rc", "cuda" where they are.
  std::vector<std::string> tls = {"posix", "tcp"};
  // UCX_NET_DEVICES: network interfaces UCX may use. Empty: all, which is right only where every
  // interface is private.
  std::vector<std::string> net_devices = {};
  // How often UCX checks that a peer's process lives (bounds the time to notice SIGKILL on posix).
  absl::Duration keepalive = absl::Seconds(1);
  // An idle connection made by Connect asks its peer for a sign of life this often.
  absl::Duration heartbeat = absl::Seconds(1);
  // A connection with unfinished work, or an unanswered sign of life, and no progress for this
  // long is closed (half-open peers: SIGSTOP, link down).
  absl::Duration progress_deadline = absl::Seconds(5);
  // After a failure, Connect to that address is refused for this long, doubling up to the maximum
  // while failures follow each other.
  absl::Duration backoff_initial = absl::Milliseconds(50);
  absl::Duration backoff_max = absl::Seconds(2);
  // Messages in flight per peer; more wait in the peer's queue.
  int window = 8;
  // Largest payload of one message, sent or received.
  uint64_t max_payload_bytes = 64ull << 20;
  // Landings in flight over all peers; a message beyond it is refused.
  uint64_t max_landing_bytes = 2ull << 30;
  // Spinning before sleep. Zero on machines where cores are scarce.
  absl::Duration spin = absl::Microseconds(50);
};

class UcxTransport : public Transport {
 public:
  // Starts UCX and its progress thread. INVALID_ARGUMENT: an option UCX refuses (named).
  // UNAVAILABLE: none of `tls` and `net_devices` exists here.
  static absl::StatusOr<std::unique_ptr<Transport>> Create(const UcxOptions& options);
};

}  // namespace baton
