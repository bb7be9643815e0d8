#include "common/rpc/rpc_server.h"

#include <grpc/support/log.h>
#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <grpcpp/impl/server_builder_option.h>
#include <grpcpp/impl/server_builder_plugin.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/rpc/callback_threads.h"

namespace baton {
namespace {

std::string JoinAddress(const std::string& host, int port) {
  const bool ipv6 = absl::StrContains(host, ':') && !absl::StartsWith(host, "[");
  return ipv6 ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

// gRPC only says that it could not bind; this says why. OK: a server could listen there.
absl::Status TryPort(const std::string& bind_to, int port) {
  const std::string address = JoinAddress(bind_to, port);
  std::string host = bind_to;
  if (host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  if (int rc = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found); rc != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("can't listen on ", address, ": ", gai_strerror(rc)));
  }
  // A name may stand for several addresses, of which gRPC needs one; a port that is taken on any of
  // them is an error all the same.
  int error = 0;
  bool bound = false;
  for (const addrinfo* a = found; a != nullptr && error != EADDRINUSE; a = a->ai_next) {
    const int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
    if (fd < 0) continue;
    const int one = 1;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    if (bind(fd, a->ai_addr, a->ai_addrlen) != 0 || listen(fd, 1) != 0) {
      error = errno;
    } else {
      bound = true;
    }
    close(fd);
  }
  freeaddrinfo(found);
  if (bound && error != EADDRINUSE) return absl::OkStatus();
  const std::string what = absl::StrCat("can't listen on ", address, ": ");
  switch (error) {
    case EADDRINUSE:
      return absl::AlreadyExistsError(
          absl::StrCat(what, "port ", port, " is in use by another process"));
    case EACCES:
      return absl::PermissionDeniedError(
          absl::StrCat(what, "port ", port, " needs privileges this process does not have"));
    case EADDRNOTAVAIL:
      return absl::InvalidArgumentError(
          absl::StrCat(what, "\"", host, "\" is not an address of this machine"));
    default:
      return absl::UnavailableError(
          absl::StrCat(what, error == 0 ? "no socket" : std::strerror(error)));
  }
}

// Linking reflection switches it on for every server of the process; this leaves it out again.
class WithoutReflection : public grpc::ServerBuilderOption {
 public:
  void UpdateArguments(grpc::ChannelArguments*) override {}
  void UpdatePlugins(std::vector<std::unique_ptr<grpc::ServerBuilderPlugin>>* plugins) override {
    std::erase_if(*plugins, [](const auto& p) { return p->name() == "proto_server_reflection"; });
  }
};

// gRPC's own complaints go where ours go, in our format.
void ForwardGrpcLog(gpr_log_func_args* args) {
  if (args->severity == GPR_LOG_SEVERITY_ERROR) {
    BATON_LOG_EVERY_SEC(1, "grpc: {}", args->message);
  } else {
    BATON_LOG_DEBUG("grpc: {}", args->message);
  }
}

class RpcServerImpl final : public RpcServer {
 public:
  RpcServerImpl(std::unique_ptr<grpc::Server> server, std::string bind, int port)
      : server_(std::move(server)), bind_(std::move(bind)), port_(port) {}

  ~RpcServerImpl() override {
    Drain(absl::ZeroDuration());
    server_->Wait();
  }

  int port() const override { return port_; }
  std::string address() const override { return JoinAddress(bind_, port_); }

  void SetServing(const std::string& service, bool serving) override {
    MutexLock lock(mu_);
    if (draining_) return;  // health says no until the end
    if (auto* health = server_->GetHealthCheckService()) {
      if (service.empty()) {
        health->SetServingStatus(serving);
      } else {
        health->SetServingStatus(service, serving);
      }
    }
  }

  void Drain(absl::Duration timeout) override {
    {
      MutexLock lock(mu_);
      if (std::exchange(draining_, true)) return;
      if (auto* health = server_->GetHealthCheckService()) health->Shutdown();
    }
    server_->Shutdown(absl::ToChronoTime(absl::Now() + timeout));
  }

 private:
  const std::unique_ptr<grpc::Server> server_;
  const std::string bind_;
  const int port_;
  Mutex mu_;
  bool draining_ GUARDED_BY(mu_) = false;
};

void ApplyLimits(const RpcServerOptions& options, grpc::ServerBuilder& builder) {
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  builder.SetMaxSendMessageSize(options.max_message_bytes);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, options.max_concurrent_streams);
  if (options.keepalive > absl::ZeroDuration()) {
    const int ms = static_cast<int>(absl::ToInt64Milliseconds(options.keepalive));
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, ms);
    builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, std::min(ms, 20'000));
    builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  }
  // Clients ping while calls run (channel.h); gRPC's default would call that too many pings.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 1000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
}

absl::Status CheckAddress(const RpcServerOptions& options) {
  if (options.port < 0 || options.port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("port ", options.port, " is outside [0, 65535]"));
  }
  if (options.bind.empty()) return absl::InvalidArgumentError("the bind address is empty");
  return absl::OkStatus();
}

}  // namespace

absl::Status RpcServer::Check(const RpcServerOptions& options) {
  BATON_RETURN_IF_ERROR(CheckAddress(options));
  BATON_RETURN_IF_ERROR(MakeServerCredentials(options.tls).status());
  return TryPort(options.bind, options.port);
}

absl::StatusOr<std::unique_ptr<RpcServer>> RpcServer::Start(
    const RpcServerOptions& options, const std::vector<grpc::Service*>& services) {
  BATON_RETURN_IF_ERROR(CheckAddress(options));
  BATON_ASSIGN_OR_RETURN(auto credentials, MakeServerCredentials(options.tls));

  // Process-wide in gRPC; whether a server has it is decided when it is built.
  static Mutex build_mu;
  MutexLock lock(build_mu);
  gpr_set_log_function(ForwardGrpcLog);
  grpc::EnableDefaultHealthCheckService(options.health);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  if (!options.reflection) builder.SetOption(std::make_unique<WithoutReflection>());
  ApplyLimits(options, builder);
  int port = 0;
  builder.AddListeningPort(JoinAddress(options.bind, options.port), credentials, &port);
  for (grpc::Service* service : services) builder.RegisterService(service);
  KeepCallbackThreads();
  std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr || port <= 0) {
    if (server != nullptr) server->Shutdown();
    BATON_RETURN_IF_ERROR(TryPort(options.bind, options.port));
    if (options.tls) {
      return absl::InvalidArgumentError(
          absl::StrCat("can't start TLS on ", JoinAddress(options.bind, options.port),
                       ": certificate and key do not fit together, or are damaged"));
    }
    return absl::UnavailableError(absl::StrCat(
        "can't listen on ", JoinAddress(options.bind, options.port), ": no reason found"));
  }
  if (auto* health = server->GetHealthCheckService()) health->SetServingStatus(false);
  auto result = std::make_unique<RpcServerImpl>(std::move(server), options.bind, port);
  BATON_LOG_INFO("listening on {}{}", result->address(), options.tls ? " (TLS)" : "");
  return result;
}

}  // namespace baton
