// One HTTP connection. Private to the gateway.
#pragma once

#include <atomic>
#include <boost/asio/any_io_executor.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "common/base/mutex.h"
#include "router/gateway/http_message.h"
#include "router/gateway/http_server.h"

namespace baton {

// What sessions and server share; outlives the server while a session lives.
struct HttpServerState {
  boost::asio::io_context io;  // first: destroyed after the handler
  HttpServerOptions options;
  HttpHandler handler;
  std::atomic<bool> draining{false};
  std::atomic<bool> stopped{false};  // nothing that is posted to `io` will run any more
};

// Everything private runs on the connection's strand, except where noted.
class HttpSession : public std::enable_shared_from_this<HttpSession> {
 public:
  HttpSession(boost::asio::ip::tcp::socket socket, std::shared_ptr<HttpServerState> server,
              std::function<void(HttpSession*)> on_closed);
  ~HttpSession();

  // Any thread.
  void Start();
  // Answers 503 and closes, without reading a request. Any thread.
  void Refuse();
  // Closes the connection if no request runs; else after its reply. Any thread.
  void CloseWhenIdle();
  // Any thread.
  void CloseNow();

 private:
  class Reply;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  enum class Phase { kIdle, kReading, kRunning, kLingering, kClosed };

  void ReadRequest();
  void OnHeader(boost::system::error_code error);
  void OnRead(boost::system::error_code error);
  void OnReadError(boost::system::error_code error);
  void Dispatch();
  void Monitor();
  void OnMonitor(boost::system::error_code error, size_t bytes);
  void ArmTimer(absl::Duration after, std::function<void()> action);
  void DisarmTimer();

  void SendError(int status, const std::string& message);
  void SendNow(HttpResponse response);
  // `counted`: of them, the bytes Write() counted as unsent.
  void Enqueue(std::string bytes, size_t counted = 0);
  void Pump();
  void OnWritten(boost::system::error_code error);
  void ReplyEnded();
  void Linger();
  void OnLinger(boost::system::error_code error);
  void Disconnected();
  void Close();

  // Of the reply with number `seq`, on the strand.
  void ReplySend(uint64_t seq, HttpResponse response);
  void ReplyBegin(uint64_t seq, std::string content_type, HttpHeaders headers);
  void ReplyWrite(uint64_t seq, std::string data);
  void ReplyEnd(uint64_t seq, bool complete);
  void ReplyDropped(uint64_t seq);

  const std::shared_ptr<HttpServerState> server_;
  boost::asio::strand<boost::asio::any_io_executor> strand_;
  boost::asio::ip::tcp::socket socket_;
  boost::asio::steady_timer timer_;
  boost::asio::steady_timer write_timer_;
  std::function<void(HttpSession*)> on_closed_;

  Phase phase_ = Phase::kIdle;
  uint64_t timer_generation_ = 0;
  boost::beast::flat_buffer buffer_;
  std::optional<Parser> parser_;
  std::string request_id_;
  bool head_only_ = false;
  bool keep_alive_ = true;
  bool http10_ = false;
  bool streaming_ = false;
  bool ending_ = false;      // everything of the reply is queued
  bool monitoring_ = false;  // a read runs while the request does
  bool read_next_ = false;   // when the monitor's read returns, read a request
  uint64_t seq_ = 0;         // of the running request
  struct Out {
    std::string bytes;
    size_t counted = 0;
  };
  std::deque<Out> out_;
  bool writing_ = false;
  std::string discard_;

  // Any thread.
  std::atomic<size_t> unsent_{0};
  std::atomic<bool> gone_{false};
  Mutex mu_;
  std::function<void()> on_disconnect_ GUARDED_BY(mu_);
};

}  // namespace baton
