#include "router/route/router_config.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/base/strings.h"
#include "router/discovery/static_directory.h"

namespace baton {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

config::Section<GatewayConfig> GatewaySection() {
  config::Section<GatewayConfig> s("The OpenAI-compatible HTTP API, /health, /readyz, /metrics.");
  s.String("bind", &GatewayConfig::bind).NotEmpty().Help("Address to listen on.");
  s.Port("port", &GatewayConfig::port).Help("Port; 0 picks a free one.").Example("8080");
  s.Int("threads", &GatewayConfig::threads).Range(1, 64).Help("Threads that serve HTTP.");
  s.Bytes("max_body", &GatewayConfig::max_body)
      .Range(1 << 10, int64_t{1} << 30)
      .Help("Largest request body; more is answered 413.");
  s.Bytes("max_header", &GatewayConfig::max_header)
      .Range(1 << 10, 1 << 20)
      .Help("Largest request header; more is answered 431.");
  s.Int("max_connections", &GatewayConfig::max_connections)
      .Range(1, 1 << 20)
      .Help("Open connections; more are answered 503.");
  s.Duration("idle_timeout", &GatewayConfig::idle_timeout)
      .Range(milliseconds(100), hours(24))
      .Help("A connection without a request is closed after this.");
  s.Duration("read_timeout", &GatewayConfig::read_timeout)
      .Range(milliseconds(100), hours(1))
      .Help("First byte of a request to its last; more is answered 408.");
  s.Duration("write_timeout", &GatewayConfig::write_timeout)
      .Range(milliseconds(100), hours(1))
      .Help("A client that takes nothing for this long is cut off.");
  return s;
}

config::Section<NodesConfig> NodesSection() {
  config::Section<NodesConfig> s("The nodes, as host:port of their gRPC servers.");
  s.StringList("decode", &NodesConfig::decode)
      .Items(0, 4096)
      .CheckItem(CheckNodeAddress)
      .Help("Decode nodes; at least one.")
      .Example("[127.0.0.1:7201]");
  s.StringList("prefill", &NodesConfig::prefill)
      .Items(0, 4096)
      .CheckItem(CheckNodeAddress)
      .Help("Prefill nodes; none: every prompt is prefilled on its decode node.")
      .Example("[127.0.0.1:7101]");
  s.Bool("require_prefill", &NodesConfig::require_prefill)
      .Help(
          "A model is ready only while a prefill node that fits may serve its prefixes; else it is "
          "ready and computes them itself.");
  s.Check([](const NodesConfig& c) -> absl::Status {
    if (c.decode.empty()) {
      return absl::InvalidArgumentError("decode: at least one decode node is needed");
    }
    if (c.require_prefill && c.prefill.empty()) {
      return absl::InvalidArgumentError("require_prefill: true, but no prefill node is named");
    }
    return StaticDirectory::Create(c.decode, c.prefill).status();
  });
  return s;
}

config::Section<PolicyConfig> PolicySection() {
  std::vector<std::pair<std::string, PolicyKind>> kinds = {
      {"round_robin", PolicyKind::kRoundRobin}, {"least_loaded", PolicyKind::kLeastLoaded}};
  config::Section<PolicyConfig> s("How nodes are chosen.");
  s.Enum("decode", &PolicyConfig::decode, kinds)
      .Help("Of decode nodes. least_loaded takes the better of two random ones.");
  kinds.emplace_back("prefix", PolicyKind::kPrefix);
  s.Enum("prefill", &PolicyConfig::prefill, kinds)
      .Help(
          "Of prefill nodes. prefix: prompts that share their first 512 tokens go to one node, "
          "which "
          "has computed them, as long as it is not overloaded.");
  return s;
}

config::Section<LimitsConfig> LimitsSection() {
  config::Section<LimitsConfig> s("What the router takes on.");
  s.Int("max_inflight", &LimitsConfig::max_inflight)
      .Range(1, 1 << 20)
      .Help("Generations at a time; more are refused with RESOURCE_EXHAUSTED (429).");
  s.Duration("request_timeout", &LimitsConfig::request_timeout)
      .Range(milliseconds(100), hours(24))
      .Help("Longest a generation may take; a client's earlier deadline wins.");
  s.Duration("retry_after", &LimitsConfig::retry_after)
      .Range(milliseconds(1), minutes(10))
      .Help("Hint to clients that were refused for load.");
  s.Int("worker_threads", &LimitsConfig::worker_threads)
      .Range(0, 256)
      .Help("Threads that check and tokenise prompts; 0: from the machine.");
  return s;
}

config::Section<RetryConfig> RetrySection() {
  config::Section<RetryConfig> s("What happens when a decode node fails.");
  s.Int("max_attempts", &RetryConfig::max_attempts)
      .Range(1, 16)
      .Help("Decode calls per generation, the first included. 1: no retry.");
  s.Duration("backoff", &RetryConfig::backoff)
      .Range(milliseconds(1), minutes(1))
      .Help("Before the first retry; doubles each time, with jitter.");
  s.Duration("max_backoff", &RetryConfig::max_backoff)
      .Range(milliseconds(1), minutes(1))
      .Help("Longest wait between attempts.");
  s.Duration("node_wait", &RetryConfig::node_wait)
      .Range(milliseconds(0), minutes(10))
      .Help("How long a generation whose node failed waits for a healthy one.");
  s.Double("budget_ratio", &RetryConfig::budget_ratio)
      .Range(0, 10)
      .Help("Retries each request adds to the budget. Migrations of running streams are free.");
  s.Int("budget_reserve", &RetryConfig::budget_reserve)
      .Range(0, 1'000'000)
      .Help("Retries the budget starts with and keeps at most.");
  return s;
}

config::Section<HealthConfig> HealthSection() {
  config::Section<HealthConfig> s("How nodes are watched.");
  s.Duration("interval", &HealthConfig::interval)
      .Range(milliseconds(10), minutes(10))
      .Help("Time between questions to a node.");
  s.Duration("timeout", &HealthConfig::timeout)
      .Range(milliseconds(10), minutes(1))
      .Help("Longest wait for its answer.");
  s.Int("gone_after", &HealthConfig::gone_after)
      .Range(1, 1000)
      .Help("Missed answers in a row until a node is GONE; one makes it SUSPECT.");
  s.Int("breaker_failures", &HealthConfig::breaker_failures)
      .Range(1, 1000)
      .Help("Failed calls in a row that open a node's circuit breaker.");
  s.Duration("breaker_open", &HealthConfig::breaker_open)
      .Range(milliseconds(10), minutes(10))
      .Help("Time until an open breaker lets one call through.");
  return s;
}

config::Section<PromptConfig> PromptSection() {
  config::Section<PromptConfig> s("How prompts become tokens.");
  s.Bool("parse_special", &PromptConfig::parse_special)
      .Help("Text prompts (not chat messages): \"<|im_end|>\" and the like become their token.");
  return s;
}

absl::Status CheckScope(const std::string& scope) {
  for (unsigned char c : scope) {
    if (c < 0x21 || c > 0x7e) {
      return absl::InvalidArgumentError("allowed: printable ASCII without spaces");
    }
  }
  return absl::OkStatus();
}

config::Section<ApiKeyEntry> ApiKeySection() {
  config::Section<ApiKeyEntry> s("An API key, by its hash.");
  s.String("name", &ApiKeyEntry::name).NotEmpty().Help("Whose it is.").Example("team-a");
  s.String("sha256", &ApiKeyEntry::sha256)
      .Secret()
      .Help("SHA-256 of the key, 64 hexadecimal digits: printf %s KEY | sha256sum.");
  s.String("tenant", &ApiKeyEntry::tenant)
      .Size(0, 128)
      .Check(CheckScope)
      .Help("Cache scope of its requests; empty: `scope`. Keys of one tenant share caches.");
  return s;
}

config::Section<AuthConfig> AuthSection() {
  config::Section<AuthConfig> s(
      "Who may use the public API, gRPC and HTTP (/v1/): authorization: Bearer KEY.");
  s.List("keys", &AuthConfig::keys, ApiKeySection())
      .Items(0, 4096)
      .Help("Known keys; none: everybody may.");
  s.Check([](const AuthConfig& c) { return ApiKeys::Create(c.keys).status(); });
  return s;
}

}  // namespace

config::Section<RouterConfig> RouterSection() {
  config::Section<RouterConfig> s("A router: the public gRPC and HTTP API of a cluster.");
  s.Sub("node", &RouterConfig::node, config::NodeSection());
  s.Sub("log", &RouterConfig::log, config::LogSection());
  s.Sub("rpc", &RouterConfig::rpc, config::RpcSection());
  s.Sub("http", &RouterConfig::http, GatewaySection());
  s.Sub("nodes", &RouterConfig::nodes, NodesSection());
  s.Sub("policy", &RouterConfig::policy, PolicySection());
  s.Sub("limits", &RouterConfig::limits, LimitsSection());
  s.Sub("retry", &RouterConfig::retry, RetrySection());
  s.Sub("health", &RouterConfig::health, HealthSection());
  s.Sub("prompt", &RouterConfig::prompt, PromptSection());
  s.Sub("auth", &RouterConfig::auth, AuthSection());
  s.String("scope", &RouterConfig::scope)
      .Size(1, 128)
      .Check(CheckScope)
      .Help("Cache scope of all requests: caches are shared within it, never across.");
  s.Sub("tls", &RouterConfig::tls, config::TlsSection());
  s.Sub("shutdown", &RouterConfig::shutdown, config::ShutdownSection());
  s.Check([](const RouterConfig& c) -> absl::Status {
    if (c.nodes.decode.empty()) {  // the section may be missing as a whole
      return absl::InvalidArgumentError("nodes.decode: at least one decode node is needed");
    }
    if (c.rpc.port != 0 && c.rpc.port == c.http.port && c.rpc.bind == c.http.bind) {
      return absl::InvalidArgumentError(
          Cat("http.port: ", c.http.port, " is also rpc.port; gRPC and HTTP need one each"));
    }
    return absl::OkStatus();
  });
  return s;
}

HttpServerOptions ToHttpServerOptions(const GatewayConfig& config) {
  HttpServerOptions options;
  options.bind = config.bind;
  options.port = config.port;
  options.threads = config.threads;
  options.max_connections = static_cast<size_t>(config.max_connections);
  options.max_header_bytes = static_cast<size_t>(config.max_header);
  options.max_body_bytes = static_cast<size_t>(config.max_body);
  options.idle_timeout = absl::FromChrono(config.idle_timeout);
  options.read_timeout = absl::FromChrono(config.read_timeout);
  options.write_timeout = absl::FromChrono(config.write_timeout);
  return options;
}

ChannelOptions ToChannelOptions(const RouterConfig& config) {
  ChannelOptions options;
  options.max_message_bytes = static_cast<int>(config.rpc.max_message_bytes);
  // A restarted node should be found again within about a second.
  options.backoff_max = absl::Seconds(1);
  if (config.tls.enabled()) {
    options.tls = ChannelTls{config.tls.ca, config.tls.cert, config.tls.key, ""};
  }
  return options;
}

}  // namespace baton
