// UCX's C handles as RAII, its statuses and settings as ours. Private to this room.
#pragma once

#include <ucp/api/ucp.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/transport/ucx/ucx_transport.h"

namespace baton::ucx {

struct ContextDeleter {
  void operator()(ucp_context_h context) const { ucp_cleanup(context); }
};
struct WorkerDeleter {
  void operator()(ucp_worker_h worker) const { ucp_worker_destroy(worker); }
};
using Context = std::unique_ptr<std::remove_pointer_t<ucp_context_h>, ContextDeleter>;
using Worker = std::unique_ptr<std::remove_pointer_t<ucp_worker_h>, WorkerDeleter>;

// UNAVAILABLE with `what` and UCX's words.
absl::Status FromUcs(ucs_status_t status, std::string_view what);

// "ucx 1.13.1", of the library in use.
std::string VersionString();

// A context with Baton's settings (never the user's UCX_* choice of transports).
absl::StatusOr<Context> CreateContext(const UcxOptions& options);

// A worker for one thread, with wake-up. UNAVAILABLE when its active-message headers are too small.
absl::StatusOr<Worker> CreateWorker(ucp_context_h context, size_t min_header_bytes);

// `network_only`: without the parts that only processes of this host can use.
absl::StatusOr<std::string> WorkerAddress(ucp_worker_h worker, bool network_only);

// Whether a transport of UcxOptions::tls leaves the host.
bool UsesNetwork(std::string_view tls);
// Whether a connection over `lane` (of LaneOf) writes to a queue in the peer's shared memory, as
// far as is known.
bool MayUseSharedMemory(std::string_view lane);

// UCX trusts an address it is given, so the address that travels carries a mark and a checksum:
// damage and mistakes are refused before UCX sees them.
std::string WrapAddress(std::string_view ucx_address);
absl::StatusOr<std::string> UnwrapAddress(std::string_view address);

inline constexpr std::string_view kUnknownLane = "unknown";

// Transports of the endpoint, e.g. "posix" or "tcp/eth0"; "unknown" if UCX does not say.
std::string LaneOf(ucp_ep_h endpoint);

// From `ucp_ep_print_info` text; exposed for its test.
std::string ParseLanes(std::string_view info);

}  // namespace baton::ucx
