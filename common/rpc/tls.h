// TLS settings of servers and channels: paths of PEM files, read at start.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace grpc {
class ServerCredentials;
class ChannelCredentials;
}  // namespace grpc

namespace baton {

struct ServerTls {
  std::string cert_path = {};
  std::string key_path = {};
  // Given: clients must show a certificate signed by one of these (mutual TLS).
  std::string client_ca_path = {};
};

struct ChannelTls {
  std::string ca_path = {};    // empty: the system's roots
  std::string cert_path = {};  // with key_path: the client's own certificate (mutual TLS)
  std::string key_path = {};
  std::string server_name = {};  // overrides the name the server's certificate must carry
};

// Plain text when absent. NOT_FOUND or PERMISSION_DENIED name the file; INVALID_ARGUMENT: a file
// without PEM data, or a certificate without its key.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const std::optional<ServerTls>& tls);
absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const std::optional<ChannelTls>& tls);

}  // namespace baton
