#include "common/rpc/rpc_config.h"

namespace baton {

RpcServerOptions ToRpcServerOptions(const config::RpcConfig& config) {
  RpcServerOptions options;
  options.bind = config.bind;
  options.port = config.port;
  options.max_message_bytes = static_cast<int>(config.max_message_bytes);
  if (config.tls.enabled()) {
    options.tls = ServerTls{config.tls.cert, config.tls.key, config.tls.ca};
  }
  return options;
}

}  // namespace baton
