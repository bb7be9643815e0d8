// The router's configuration file.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/common_sections.h"
#include "common/config/schema.h"
#include "common/rpc/channel.h"
#include "router/gateway/api_keys.h"
#include "router/gateway/http_server.h"
#include "router/route/policy.h"

namespace baton {

// http: the OpenAI-compatible API, health and metrics.
struct GatewayConfig {
  std::string bind = "127.0.0.1";
  int port = 0;
  int threads = 2;
  int64_t max_body = 8 << 20;
  int64_t max_header = 16 << 10;
  int max_connections = 1024;
  std::chrono::milliseconds idle_timeout{60'000};
  std::chrono::milliseconds read_timeout{30'000};
  std::chrono::milliseconds write_timeout{30'000};
};

// nodes: addresses of gRPC servers, host:port.
struct NodesConfig {
  std::vector<std::string> decode;
  std::vector<std::string> prefill;
  bool require_prefill = false;
};

// policy:
struct PolicyConfig {
  PolicyKind decode = PolicyKind::kLeastLoaded;
  PolicyKind prefill = PolicyKind::kPrefix;
};

// limits:
struct LimitsConfig {
  int max_inflight = 1024;
  std::chrono::milliseconds request_timeout{600'000};
  std::chrono::milliseconds retry_after{1'000};
  int worker_threads = 0;  // 0: from the machine
};

// retry:
struct RetryConfig {
  int max_attempts = 4;
  std::chrono::milliseconds backoff{50};
  std::chrono::milliseconds max_backoff{1'000};
  std::chrono::milliseconds node_wait{5'000};
  double budget_ratio = 0.2;
  int budget_reserve = 100;
};

// health:
struct HealthConfig {
  std::chrono::milliseconds interval{1'000};
  std::chrono::milliseconds timeout{1'000};
  int gone_after = 3;
  int breaker_failures = 5;
  std::chrono::milliseconds breaker_open{5'000};
};

// auth: who may use the public API; no keys: everybody.
struct AuthConfig {
  std::vector<ApiKeyEntry> keys;
};

// prompt:
struct PromptConfig {
  bool parse_special = true;
};

struct RouterConfig {
  config::NodeNameConfig node;
  config::LogConfig log;
  config::RpcConfig rpc;
  GatewayConfig http;
  NodesConfig nodes;
  PolicyConfig policy;
  LimitsConfig limits;
  RetryConfig retry;
  HealthConfig health;
  PromptConfig prompt;
  AuthConfig auth;
  std::string scope = "default";
  config::TlsConfig tls;  // towards nodes
  config::ShutdownConfig shutdown;
};

config::Section<RouterConfig> RouterSection();

// What the rooms below take.
HttpServerOptions ToHttpServerOptions(const GatewayConfig& config);
ChannelOptions ToChannelOptions(const RouterConfig& config);

}  // namespace baton
