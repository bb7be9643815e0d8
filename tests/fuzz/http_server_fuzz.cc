// Raw bytes to the HTTP server over a socket. Whatever comes, the answer begins with a status line
// and the connection ends; a request that was whole reaches the handler within the limits.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include "router/gateway/http_server.h"
#include "tests/fuzz/fuzz_util.h"

namespace baton {
namespace {

constexpr size_t kMaxBody = 1000;

std::unique_ptr<HttpServer> Start() {
  HttpServerOptions options;
  options.threads = 1;
  options.max_header_bytes = 2000;
  options.max_body_bytes = kMaxBody;
  auto server = HttpServer::Start(options, [](HttpRequest request, auto reply) {
    FUZZ_CHECK(request.body.size() <= kMaxBody);
    FUZZ_CHECK(!request.method.empty() && !request.request_id.empty());
    if (request.path == "/stream") {
      reply->BeginStream("text/event-stream", {});
      reply->Write(request.body);
      reply->EndStream(true);
      return;
    }
    HttpResponse response;
    response.body = std::move(request.body);
    reply->Send(std::move(response));
  });
  FUZZ_CHECK(server.ok());
  return *std::move(server);
}

// Sends `bytes`, ends the sending side, reads until the server closes.
std::string Exchange(int port, std::string_view bytes) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  FUZZ_CHECK(fd >= 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  FUZZ_CHECK(connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  // An error means that the server has closed already.
  if (send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) >= 0) shutdown(fd, SHUT_WR);
  std::string answer;
  char buffer[4096];
  for (ssize_t n; (n = recv(fd, buffer, sizeof buffer, 0)) > 0;) {
    answer.append(buffer, static_cast<size_t>(n));
  }
  const linger now{.l_onoff = 1, .l_linger = 0};  // leaves no port in TIME_WAIT
  setsockopt(fd, SOL_SOCKET, SO_LINGER, &now, sizeof now);
  close(fd);
  return answer;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static HttpServer* const kServer = Start().release();
  const std::string answer = Exchange(kServer->port(), FuzzText(data, size));
  FUZZ_CHECK(answer.empty() || answer.starts_with("HTTP/1.1 ") || answer.starts_with("HTTP/1.0 "));
  return 0;
}

}  // namespace baton
