#include "common/rpc/channel.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/support/channel_arguments.h>

#include <algorithm>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/rpc/callback_threads.h"

namespace baton {
namespace {

// gRPC gives one connection attempt as long as its smallest back-off; a busy peer needs this much.
constexpr absl::Duration kConnectTime = absl::Seconds(1);

absl::Status CheckAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = 0;
  if (colon == std::string::npos || colon == 0 ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", address, "\" is not an address of the form host:port"));
  }
  return absl::OkStatus();
}

int Milliseconds(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

}  // namespace

absl::StatusOr<std::shared_ptr<grpc::Channel>> MakeChannel(const std::string& address,
                                                           const ChannelOptions& options) {
  BATON_RETURN_IF_ERROR(CheckAddress(address));
  BATON_ASSIGN_OR_RETURN(auto credentials, MakeChannelCredentials(options.tls));
  grpc::ChannelArguments args;
  args.SetMaxReceiveMessageSize(options.max_message_bytes);
  args.SetMaxSendMessageSize(options.max_message_bytes);
  if (options.keepalive > absl::ZeroDuration()) {
    args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, Milliseconds(options.keepalive));
    args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Milliseconds(options.keepalive_timeout));
    // A stream that is silent for long (a queued request) must still notice a dead server.
    args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  }
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, Milliseconds(options.backoff_initial));
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
              Milliseconds(std::max(options.backoff_initial, kConnectTime)));
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, Milliseconds(options.backoff_max));
  // Nodes are reached directly; a proxy from the environment would break hand-offs.
  args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  if (options.own_connection) args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  if (options.tls && !options.tls->server_name.empty()) {
    args.SetSslTargetNameOverride(options.tls->server_name);
  }
  KeepCallbackThreads();
  return grpc::CreateCustomChannel(address, credentials, args);
}

}  // namespace baton
