#include "common/rpc/tls.h"

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <sstream>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"

namespace baton {
namespace {

// `what` names the setting in messages.
absl::StatusOr<std::string> ReadPem(const std::string& path, const char* what, const char* marker) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    const std::string message =
        absl::StrCat("TLS ", what, " \"", path, "\" can't be read: ", std::strerror(errno));
    return errno == EACCES ? absl::PermissionDeniedError(message) : absl::NotFoundError(message);
  }
  std::ostringstream text;
  text << file.rdbuf();
  std::string pem = std::move(text).str();
  if (!absl::StrContains(pem, marker)) {
    return absl::InvalidArgumentError(
        absl::StrCat("TLS ", what, " \"", path, "\" holds no PEM block with \"", marker, "\""));
  }
  return pem;
}

absl::StatusOr<std::string> ReadCert(const std::string& path, const char* what) {
  return ReadPem(path, what, "BEGIN CERTIFICATE");
}

absl::StatusOr<std::string> ReadKey(const std::string& path) {
  return ReadPem(path, "key", "PRIVATE KEY");
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> MakeServerCredentials(
    const std::optional<ServerTls>& tls) {
  if (!tls) return grpc::InsecureServerCredentials();
  if (tls->cert_path.empty() || tls->key_path.empty()) {
    return absl::InvalidArgumentError("TLS needs both a certificate and its key");
  }
  grpc::SslServerCredentialsOptions options;
  BATON_ASSIGN_OR_RETURN(std::string cert, ReadCert(tls->cert_path, "certificate"));
  BATON_ASSIGN_OR_RETURN(std::string key, ReadKey(tls->key_path));
  options.pem_key_cert_pairs.push_back({std::move(key), std::move(cert)});
  if (!tls->client_ca_path.empty()) {
    BATON_ASSIGN_OR_RETURN(options.pem_root_certs, ReadCert(tls->client_ca_path, "client CA"));
    options.client_certificate_request = GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
  }
  return grpc::SslServerCredentials(options);
}

absl::StatusOr<std::shared_ptr<grpc::ChannelCredentials>> MakeChannelCredentials(
    const std::optional<ChannelTls>& tls) {
  if (!tls) return grpc::InsecureChannelCredentials();
  grpc::SslCredentialsOptions options;
  if (!tls->ca_path.empty()) {
    BATON_ASSIGN_OR_RETURN(options.pem_root_certs, ReadCert(tls->ca_path, "CA"));
  }
  if (tls->cert_path.empty() != tls->key_path.empty()) {
    return absl::InvalidArgumentError("a TLS client certificate needs its key, and the reverse");
  }
  if (!tls->cert_path.empty()) {
    BATON_ASSIGN_OR_RETURN(options.pem_cert_chain, ReadCert(tls->cert_path, "certificate"));
    BATON_ASSIGN_OR_RETURN(options.pem_private_key, ReadKey(tls->key_path));
  }
  return grpc::SslCredentials(options);
}

}  // namespace baton
