// The server's options from a daemon's `rpc` section.
#pragma once

#include "common/config/common_sections.h"
#include "common/rpc/rpc_server.h"

namespace baton {

RpcServerOptions ToRpcServerOptions(const config::RpcConfig& config);

}  // namespace baton
