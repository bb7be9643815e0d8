// Sections that every daemon's file has.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>

#include "common/base/logging.h"
#include "common/config/schema.h"

namespace baton::config {

// log:
struct LogConfig {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
};
Section<LogConfig> LogSection();

// node:
struct NodeNameConfig {
  std::string name;  // empty: the host's name
};
Section<NodeNameConfig> NodeSection();

// http: health and metrics of a node (the router's public API has its own).
struct HttpConfig {
  std::string bind = "127.0.0.1";
  int port = 0;  // 0: pick a free one
};
Section<HttpConfig> HttpSection();

// rpc.tls: absent files mean no TLS. With `ca`, peers must show a certificate it signed (mTLS).
struct TlsConfig {
  std::string cert;  // PEM paths
  std::string key;
  std::string ca;
  bool enabled() const { return !cert.empty() || !ca.empty(); }
};
Section<TlsConfig> TlsSection();

// rpc:
struct RpcConfig {
  std::string bind = "127.0.0.1";
  int port = 0;           // 0: pick a free one
  std::string advertise;  // host or host:port told to peers; empty: bind and port
  int64_t max_message_bytes = 16 << 20;
  TlsConfig tls;
};
Section<RpcConfig> RpcSection();

// shutdown:
struct ShutdownConfig {
  std::chrono::milliseconds drain_timeout{30'000};
};
Section<ShutdownConfig> ShutdownSection();

}  // namespace baton::config
