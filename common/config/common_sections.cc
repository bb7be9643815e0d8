#include "common/config/common_sections.h"

#include <arpa/inet.h>

#include "common/base/strings.h"

namespace baton::config {
namespace {

bool IsHostName(std::string_view text) {
  if (text.empty() || text.size() > 253 || text[0] == '-' || text[0] == '.') return false;
  for (const char c : text) {
    const bool fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                      c == '-' || c == '.' || c == '_';
    if (!fine) return false;
  }
  return true;
}

bool IsIpv6(const std::string& text) {
  in6_addr address;
  return inet_pton(AF_INET6, text.c_str(), &address) == 1;
}

absl::Status CheckBind(const std::string& text) {
  if (IsHostName(text) || IsIpv6(text)) return absl::OkStatus();
  return absl::InvalidArgumentError(fmt::format(
      "'{}' is not an address; allowed: a host name, an IPv4 or an IPv6 address without port "
      "(127.0.0.1, 0.0.0.0, ::)",
      text));
}

absl::Status CheckAdvertise(const std::string& text) {
  if (text.empty() || IsHostName(text) || IsIpv6(text)) return absl::OkStatus();
  const size_t colon = text.rfind(':');
  if (colon != std::string::npos) {
    std::string host = text.substr(0, colon);
    const std::string port = text.substr(colon + 1);
    const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
    const bool good_host = bracketed ? IsIpv6(host.substr(1, host.size() - 2)) : IsHostName(host);
    const bool digits = !port.empty() && port.size() <= 5 &&
                        port.find_first_not_of("0123456789") == std::string::npos;
    if (good_host && digits && std::stoi(port) >= 1 && std::stoi(port) <= 65535) {
      return absl::OkStatus();
    }
  }
  return absl::InvalidArgumentError(fmt::format(
      "'{}' is not an address; allowed: host or host:port ([::1]:7000 for IPv6)", text));
}

absl::Status CheckNodeName(const std::string& text) {
  if (text.empty() || (IsHostName(text) && text.size() <= 63)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("'{}' is not a name; allowed: up to 63 letters, digits, '-', '_' and '.'", text));
}

}  // namespace

Section<LogConfig> LogSection() {
  Section<LogConfig> s("Logging to standard error.");
  s.Enum("level", &LogConfig::level,
         {{"debug", LogLevel::kDebug},
          {"info", LogLevel::kInfo},
          {"warn", LogLevel::kWarn},
          {"error", LogLevel::kError},
          {"off", LogLevel::kOff}})
      .Help("Least severe message that is written.")
      .Env("BATON_LOG_LEVEL")
      .Reloadable();
  s.Enum("format", &LogConfig::format, {{"text", LogFormat::kText}, {"json", LogFormat::kJson}})
      .Help("One line of text or one JSON object per message.")
      .Env("BATON_LOG_FORMAT");
  return s;
}

Section<NodeNameConfig> NodeSection() {
  Section<NodeNameConfig> s("Who this daemon is.");
  s.String("name", &NodeNameConfig::name)
      .Help("Name in logs, metrics and membership; empty: the host's name.")
      .Example("decode-0")
      .Env("BATON_NODE_NAME")
      .ExpandEnv()
      .Check(CheckNodeName);
  return s;
}

Section<HttpConfig> HttpSection() {
  Section<HttpConfig> s("Health and metrics over HTTP (/health, /readyz, /metrics).");
  s.String("bind", &HttpConfig::bind)
      .Help("Address to listen on; 0.0.0.0 or :: for every interface.")
      .ExpandEnv()
      .Check(CheckBind);
  s.Port("port", &HttpConfig::port).Help("0 picks a free port, which is logged.");
  return s;
}

Section<TlsConfig> TlsSection() {
  Section<TlsConfig> s("TLS; absent files mean plain text.");
  s.String("cert", &TlsConfig::cert).Help("PEM file of this daemon's certificate chain.");
  s.String("key", &TlsConfig::key).Help("PEM file of its private key.");
  s.String("ca", &TlsConfig::ca)
      .Help("PEM file of the authority whose certificates peers must show (mutual TLS).");
  s.Check([](const TlsConfig& tls) {
    if (tls.cert.empty() == tls.key.empty()) return absl::OkStatus();
    return absl::InvalidArgumentError(tls.cert.empty()
                                          ? "key: is given without cert; give both or neither"
                                          : "cert: is given without key; give both or neither");
  });
  return s;
}

Section<RpcConfig> RpcSection() {
  Section<RpcConfig> s("The gRPC server.");
  s.String("bind", &RpcConfig::bind)
      .Help("Address to listen on; 0.0.0.0 or :: for every interface.")
      .ExpandEnv()
      .Check(CheckBind);
  s.Port("port", &RpcConfig::port).Help("0 picks a free port, which is logged.");
  s.String("advertise", &RpcConfig::advertise)
      .Help("Host or host:port that peers are told; empty: bind and port.")
      .Example("decode-0.baton.svc:7002")
      .Env("BATON_RPC_ADVERTISE")
      .ExpandEnv()
      .Check(CheckAdvertise);
  s.Bytes("max_message_bytes", &RpcConfig::max_message_bytes)
      .Help("Largest message accepted.")
      .Range(64 << 10, int64_t{1} << 30);
  s.Sub("tls", &RpcConfig::tls, TlsSection());
  return s;
}

Section<ShutdownConfig> ShutdownSection() {
  Section<ShutdownConfig> s("Draining after SIGTERM or Ctrl-C.");
  s.Duration("drain_timeout", &ShutdownConfig::drain_timeout)
      .Help("How long running requests may go on before they are cancelled.")
      .Range(std::chrono::seconds(0), std::chrono::hours(24))
      .Reloadable();
  return s;
}

}  // namespace baton::config
