#include "common/node/http_status.h"

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <chrono>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

namespace asio = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
using Tcp = asio::ip::tcp;

constexpr std::chrono::seconds kSilence(5);
constexpr int kMaxHeaderBytes = 8 << 10;

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  Connection(Tcp::socket socket, const HttpStatusOptions& options, const MetricRegistry& metrics)
      : stream_(std::move(socket)), options_(options), metrics_(metrics) {
    parser_.header_limit(kMaxHeaderBytes);
    parser_.body_limit(0);
  }

  void Run() {
    stream_.expires_after(kSilence);
    http::async_read(stream_, buffer_, parser_,
                     [self = shared_from_this()](beast::error_code e, size_t) {
                       if (!e) self->Answer();
                     });
  }

 private:
  void Answer() {
    const auto& request = parser_.get();
    response_.version(request.version());
    response_.set(http::field::content_type, "text/plain; charset=utf-8");
    const bool head = request.method() == http::verb::head;
    if (request.method() != http::verb::get && !head) {
      Fill(http::status::method_not_allowed, "only GET and HEAD\n");
    } else {
      const std::string target(request.target().substr(0, request.target().find('?')));
      if (target == "/metrics") {
        response_.set(http::field::content_type, "text/plain; version=0.0.4; charset=utf-8");
        Fill(http::status::ok, metrics_.SerializeText());
      } else if (target == "/health") {
        Fill(http::status::ok, "ok\n");
      } else if (target == "/readyz") {
        const bool ready = !options_.ready || options_.ready();
        Fill(ready ? http::status::ok : http::status::service_unavailable,
             ready ? "ready\n" : "not ready\n");
      } else {
        Fill(http::status::not_found, "try /metrics, /health or /readyz\n");
      }
    }
    response_.keep_alive(false);
    response_.prepare_payload();
    if (head) response_.body().clear();
    stream_.expires_after(kSilence);
    http::async_write(stream_, response_, [self = shared_from_this()](beast::error_code, size_t) {
      beast::error_code ignored;
      self->stream_.socket().shutdown(Tcp::socket::shutdown_send, ignored);
    });
  }

  void Fill(http::status status, std::string body) {
    response_.result(status);
    response_.body() = std::move(body);
  }

  beast::tcp_stream stream_;
  const HttpStatusOptions& options_;
  const MetricRegistry& metrics_;
  beast::flat_buffer buffer_;
  http::request_parser<http::empty_body> parser_;
  http::response<http::string_body> response_;
};

}  // namespace

class HttpStatus::Impl {
 public:
  Impl(HttpStatusOptions options, MetricRegistry metrics)
      : options_(std::move(options)), metrics_(std::move(metrics)), acceptor_(context_) {}

  ~Impl() {
    context_.stop();
    if (thread_.joinable()) thread_.join();
  }

  absl::Status Listen() {
    beast::error_code e;
    const asio::ip::address address = asio::ip::make_address(options_.bind, e);
    if (e) {
      return absl::InvalidArgumentError(
          absl::StrCat("http.bind: \"", options_.bind, "\" is not an IP address"));
    }
    const Tcp::endpoint endpoint(address, static_cast<unsigned short>(options_.port));
    const auto failed = [&](const char* what) {
      const std::string where = absl::StrCat(options_.bind, ":", options_.port);
      if (e == asio::error::address_in_use) {
        return absl::AlreadyExistsError(absl::StrCat("http: port in use: ", where));
      }
      return absl::UnavailableError(absl::StrCat("http: ", what, " ", where, ": ", e.message()));
    };
    acceptor_.open(endpoint.protocol(), e);
    if (e) return failed("cannot open");
    acceptor_.set_option(asio::socket_base::reuse_address(true), e);
    acceptor_.bind(endpoint, e);
    if (e) return failed("cannot bind");
    acceptor_.listen(64, e);
    if (e) return failed("cannot listen on");
    port_ = acceptor_.local_endpoint().port();
    Accept();
    thread_ = std::thread([this] { context_.run(); });
    return absl::OkStatus();
  }

  int port() const { return port_; }

 private:
  void Accept() {
    acceptor_.async_accept([this](beast::error_code e, Tcp::socket socket) {
      if (e == asio::error::operation_aborted) return;
      if (!e) {
        std::make_shared<Connection>(std::move(socket), options_, metrics_)->Run();
      } else {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));  // out of descriptors: no spin
      }
      Accept();
    });
  }

  const HttpStatusOptions options_;
  const MetricRegistry metrics_;
  asio::io_context context_{1};
  Tcp::acceptor acceptor_;
  int port_ = 0;
  std::thread thread_;
};

absl::StatusOr<std::unique_ptr<HttpStatus>> HttpStatus::Start(HttpStatusOptions options,
                                                              MetricRegistry metrics) {
  auto impl = std::make_unique<Impl>(std::move(options), std::move(metrics));
  if (absl::Status s = impl->Listen(); !s.ok()) return s;
  return std::unique_ptr<HttpStatus>(new HttpStatus(std::move(impl)));
}

HttpStatus::HttpStatus(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HttpStatus::~HttpStatus() = default;
int HttpStatus::port() const { return impl_->port(); }

}  // namespace baton
