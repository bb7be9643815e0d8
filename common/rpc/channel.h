// Client channels with Baton's limits.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/tls.h"

namespace grpc {
class Channel;
}

namespace baton {

struct ChannelOptions {
  std::optional<ChannelTls> tls = std::nullopt;  // absent: plain text
  int max_message_bytes = 64 << 20;
  absl::Duration keepalive = absl::Seconds(10);  // pings while calls run; zero: none
  absl::Duration keepalive_timeout = absl::Seconds(5);
  absl::Duration backoff_initial = absl::Milliseconds(100);
  absl::Duration backoff_max = absl::Seconds(2);
  // True: a connection of its own. False: channels to one address share a connection.
  bool own_connection = false;
};

// A lazy channel to "host:port": connects at the first call and reconnects by itself.
// INVALID_ARGUMENT: not "host:port". TLS errors as in tls.h.
absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& address,
                                                           const ChannelOptions& options = {});

}  // namespace baton
