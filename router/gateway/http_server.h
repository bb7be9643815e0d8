// A small asynchronous HTTP/1.1 server: keep-alive, chunked streaming, limits, time-outs, drain.
//
//   auto server = HttpServer::Start(options, [](HttpRequest request, auto reply) { ... });
//   ... (*server)->port() ...
//   (*server)->Drain(absl::Seconds(30));
//
// Threads: `options.threads` of its own. A connection's handlers run on a strand; the request
// handler runs there too and must not block.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "router/gateway/http_message.h"

namespace baton {

struct HttpServerOptions {
  std::string bind = "127.0.0.1";
  int port = 0;  // 0: any free one, see port()
  int threads = 2;
  size_t max_connections = 1024;       // more are answered 503
  size_t max_header_bytes = 16 << 10;  // more: 431
  size_t max_body_bytes = 8 << 20;     // more: 413
  size_t max_unsent_bytes = 4 << 20;   // of a stream; more: the client reads too slowly
  absl::Duration idle_timeout = absl::Seconds(60);   // between requests
  absl::Duration read_timeout = absl::Seconds(30);   // first byte of a request to its last: 408
  absl::Duration write_timeout = absl::Seconds(30);  // one write without progress
  // Body and content type of a reply the server makes itself (408, 413, 431, 400, 503).
  std::function<HttpResponse(int status, const std::string& message)> error_response;
};

// Thread-safe.
class HttpServer {
 public:
  // ALREADY_EXISTS: the port is in use (names address and port). INVALID_ARGUMENT: an unusable
  // address. PERMISSION_DENIED.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                           HttpHandler handler);
  // Stops at once; clients of running requests are cut off.
  virtual ~HttpServer() = default;

  virtual int port() const = 0;
  virtual size_t connections() const = 0;
  // Takes no new connection, closes idle ones, lets running requests end until `timeout`, then cuts
  // them off. Returns when all are gone.
  virtual void Drain(absl::Duration timeout) = 0;
};

}  // namespace baton
