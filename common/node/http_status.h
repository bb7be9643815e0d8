// A tiny HTTP listener for /metrics, /health and /readyz of a node.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/metrics/metrics.h"

namespace baton {

struct HttpStatusOptions {
  std::string bind = "127.0.0.1";
  int port = 0;                 // 0: any free one, see port()
  std::function<bool()> ready;  // /readyz answers 503 while false; empty: always ready
};

// One thread of its own. /health says 200 as long as the process serves HTTP at all. Connections
// are closed after one request, or 5 s of silence.
class HttpStatus {
 public:
  // ALREADY_EXISTS: the port is in use (names address and port). INVALID_ARGUMENT: not an address.
  static absl::StatusOr<std::unique_ptr<HttpStatus>> Start(HttpStatusOptions options,
                                                           MetricRegistry metrics);
  ~HttpStatus();
  int port() const;

 private:
  class Impl;
  explicit HttpStatus(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton
