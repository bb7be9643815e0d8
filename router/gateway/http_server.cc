#include "router/gateway/http_server.h"

#include <algorithm>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/base/strings.h"
#include "router/gateway/http_session.h"

namespace baton {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

absl::Status BindError(const HttpServerOptions& options, error_code error) {
  const std::string where = Cat("http ", options.bind, ":", options.port);
  if (error == asio::error::address_in_use) {
    return absl::AlreadyExistsError(Cat(where, ": the port is in use"));
  }
  if (error == asio::error::access_denied) {
    return absl::PermissionDeniedError(Cat(where, ": ", error.message()));
  }
  return absl::InvalidArgumentError(Cat(where, ": ", error.message()));
}

class HttpServerImpl final : public HttpServer {
 public:
  HttpServerImpl(const HttpServerOptions& options, HttpHandler handler)
      : state_(std::make_shared<HttpServerState>()),
        registry_(std::make_shared<Registry>()),
        io_(state_->io),
        work_(io_.get_executor()),
        accept_strand_(asio::make_strand(io_)),
        acceptor_(accept_strand_),
        accept_timer_(accept_strand_) {
    state_->options = options;
    state_->handler = std::move(handler);
  }

  ~HttpServerImpl() override {
    state_->draining.store(true);
    asio::post(accept_strand_, [this] { StopAccepting(); });
    registry_->ForEach([](HttpSession& session) { session.CloseNow(); });
    // Everything is closed, so the threads run out of work by themselves; a connection that a slow
    // handler still holds keeps the context alive through its state.
    work_.reset();
    for (std::thread& thread : threads_) thread.join();
    state_->stopped.store(true);
    // What replies posted after the threads ended and before they saw that.
    io_.restart();
    io_.poll();
  }

  absl::Status Listen() {
    error_code error;
    tcp::resolver resolver(io_);
    const auto found =
        resolver.resolve(state_->options.bind, Cat(state_->options.port),
                         tcp::resolver::passive | tcp::resolver::numeric_service, error);
    if (error || found.empty()) return BindError(state_->options, error);
    const tcp::endpoint endpoint = found.begin()->endpoint();
    acceptor_.open(endpoint.protocol(), error);
    // Restarts may bind over TIME_WAIT; two listeners on one port are still refused on Linux.
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) return BindError(state_->options, error);
    port_ = acceptor_.local_endpoint(error).port();
    asio::post(accept_strand_, [this] { Accept(); });
    for (int i = 0; i < std::max(1, state_->options.threads); ++i) {
      threads_.emplace_back([this] { io_.run(); });
    }
    return absl::OkStatus();
  }

  int port() const override { return port_; }
  size_t connections() const override { return registry_->Size(); }

  void Drain(absl::Duration timeout) override {
    state_->draining.store(true);
    // The port is closed before this returns, and before sessions are asked to end: none can come
    // after them.
    auto closed = std::make_shared<std::promise<void>>();
    asio::post(accept_strand_, [this, closed] {
      StopAccepting();
      closed->set_value();
    });
    closed->get_future().wait_for(absl::ToChronoNanoseconds(timeout));
    registry_->ForEach([](HttpSession& session) { session.CloseWhenIdle(); });
    if (registry_->WaitEmpty(absl::ToChronoNanoseconds(timeout))) return;
    registry_->ForEach([](HttpSession& session) { session.CloseNow(); });
    registry_->WaitEmpty(std::chrono::seconds(1));
  }

 private:
  // Sessions that live; shared with them, since the last one may outlast the server's members.
  struct Registry {
    Mutex mu;
    CondVar changed;
    std::unordered_map<HttpSession*, std::weak_ptr<HttpSession>> sessions GUARDED_BY(mu);

    void Add(const std::shared_ptr<HttpSession>& session) {
      MutexLock lock(mu);
      sessions.emplace(session.get(), session);
    }
    void Remove(HttpSession* session) {
      MutexLock lock(mu);
      sessions.erase(session);
      changed.NotifyAll();
    }
    size_t Size() {
      MutexLock lock(mu);
      return sessions.size();
    }
    bool WaitEmpty(std::chrono::nanoseconds timeout) {
      MutexLock lock(mu);
      return changed.WaitFor(mu, timeout, [this]() REQUIRES(mu) { return sessions.empty(); });
    }
    template <typename Fn>
    void ForEach(Fn fn) {
      std::vector<std::shared_ptr<HttpSession>> live;
      {
        MutexLock lock(mu);
        for (auto& [unused, weak] : sessions) {
          if (auto session = weak.lock()) live.push_back(std::move(session));
        }
      }
      for (auto& session : live) fn(*session);
    }
  };

  void StopAccepting() {
    error_code ignored;
    acceptor_.close(ignored);
    accept_timer_.cancel();
  }

  void Accept() {
    acceptor_.async_accept(io_, [this](error_code error, tcp::socket socket) {
      if (!acceptor_.is_open()) return;
      if (error) {
        // Out of file descriptors or memory: closing connections will free some.
        BATON_LOG_EVERY_SEC(10, "http: accept failed: {}", error.message());
        accept_timer_.expires_after(std::chrono::milliseconds(100));
        accept_timer_.async_wait([this](error_code aborted) {
          if (!aborted) Accept();
        });
        return;
      }
      const bool full = registry_->Size() >= state_->options.max_connections;
      auto session = std::make_shared<HttpSession>(
          std::move(socket), state_,
          [registry = registry_](HttpSession* closed) { registry->Remove(closed); });
      registry_->Add(session);
      if (full) {
        session->Refuse();
      } else {
        session->Start();
      }
      Accept();
    });
  }

  const std::shared_ptr<HttpServerState> state_;
  const std::shared_ptr<Registry> registry_;
  asio::io_context& io_;
  asio::executor_work_guard<asio::io_context::executor_type> work_;
  asio::strand<asio::io_context::executor_type> accept_strand_;
  tcp::acceptor acceptor_;           // on accept_strand_
  asio::steady_timer accept_timer_;  // on accept_strand_
  int port_ = 0;
  std::vector<std::thread> threads_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                              HttpHandler handler) {
  auto server = std::make_unique<HttpServerImpl>(options, std::move(handler));
  absl::Status status = server->Listen();
  if (!status.ok()) return status;
  return server;
}

}  // namespace baton
