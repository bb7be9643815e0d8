// A gRPC server with what every daemon needs: a bind address that fails loudly when taken, limits,
// TLS, standard health and reflection services, and a drain.
//
//   BATON_ASSIGN_OR_RETURN(auto server, RpcServer::Start(options, {&decode_service}));
//   server->SetServing("baton.v1.Decode", true);
//   …
//   server->Drain(absl::Seconds(30));  // the destructor stops at once
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/rpc/tls.h"

namespace grpc {
class Service;
}

namespace baton {

struct RpcServerOptions {
  std::string bind = "127.0.0.1";               // IPv4 or IPv6 address, or a host name
  int port = 0;                                 // 0: any free one, see port()
  int max_message_bytes = 64 << 20;             // received and sent
  std::optional<ServerTls> tls = std::nullopt;  // absent: plain text
  bool reflection = true;
  bool health = true;  // grpc.health.v1.Health; not serving until SetServing
  absl::Duration keepalive = absl::Seconds(30);  // pings on silent connections; zero: none
  int max_concurrent_streams = 1024;             // per connection
};

// Thread-safe.
class RpcServer {
 public:
  // `services` must outlive the server. INVALID_ARGUMENT: a port outside [0, 65535] or an unusable
  // address. ALREADY_EXISTS: the port is in use (names address and port; a second server never
  // shares it). PERMISSION_DENIED, NOT_FOUND: port or TLS files that may not be used.
  static absl::StatusOr<std::unique_ptr<RpcServer>> Start(
      const RpcServerOptions& options, const std::vector<grpc::Service*>& services);

  // What Start would say of address, port and TLS files now, for daemons that have much to do
  // before they can serve. The port is open only as long as the question takes.
  static absl::Status Check(const RpcServerOptions& options);

  virtual ~RpcServer() = default;

  virtual int port() const = 0;
  // "address:port", brackets around an IPv6 address.
  virtual std::string address() const = 0;

  // What the health service answers for `service` ("baton.v1.Decode"; "" = the whole server).
  virtual void SetServing(const std::string& service, bool serving) = 0;

  // Health says NOT_SERVING, no new connection is taken, running calls have until `timeout` to
  // end; then they are cancelled. Returns when all are over. Later calls return at once.
  virtual void Drain(absl::Duration timeout) = 0;
};

}  // namespace baton
