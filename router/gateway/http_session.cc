#include "router/gateway/http_session.h"

#include <boost/asio/bind_executor.hpp>
#include <boost/asio/buffer.hpp>
#include <boost/asio/dispatch.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/read.hpp>
#include <chrono>
#include <utility>

#include "common/base/ids.h"
#include "common/base/strings.h"
#include "common/rpc/call_context.h"

namespace baton {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using boost::system::error_code;

// Bytes of pipelined requests kept while one runs.
constexpr size_t kMaxPipelined = 64 << 10;
constexpr auto kLingerTime = std::chrono::seconds(2);

// A header value from a handler must not start a header of its own.
std::string HeaderSafe(std::string value) {
  for (char& c : value) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  return value;
}

}  // namespace

class HttpSession::Reply final : public HttpReply {
 public:
  Reply(std::shared_ptr<HttpSession> session, uint64_t seq)
      : session_(std::move(session)), seq_(seq) {}
  ~Reply() override {
    Post([seq = seq_](HttpSession& s) { s.ReplyDropped(seq); });
  }

  void Send(HttpResponse response) override {
    Post([seq = seq_, response = std::move(response)](HttpSession& s) mutable {
      s.ReplySend(seq, std::move(response));
    });
  }
  void BeginStream(std::string_view content_type, HttpHeaders headers) override {
    Post([seq = seq_, type = std::string(content_type), headers = std::move(headers)](
             HttpSession& s) mutable { s.ReplyBegin(seq, std::move(type), std::move(headers)); });
  }
  bool Write(std::string_view data) override {
    if (session_->gone_.load()) return false;
    const size_t before = session_->unsent_.fetch_add(data.size());
    if (before > 0 && before + data.size() > session_->server_->options.max_unsent_bytes) {
      session_->unsent_.fetch_sub(data.size());
      return false;
    }
    Post([seq = seq_, data = std::string(data)](HttpSession& s) mutable {
      s.ReplyWrite(seq, std::move(data));
    });
    return true;
  }
  void EndStream(bool complete) override {
    Post([seq = seq_, complete](HttpSession& s) { s.ReplyEnd(seq, complete); });
  }
  void SetOnDisconnect(std::function<void()> callback) override {
    {
      MutexLock lock(session_->mu_);
      if (!session_->gone_.load()) {
        session_->on_disconnect_ = std::move(callback);
        return;
      }
    }
    callback();
  }

 private:
  template <typename Fn>
  void Post(Fn fn) {
    // What nobody runs would keep the session, and with it the server's state, for ever.
    if (session_->server_->stopped.load()) return;
    asio::post(session_->strand_,
               [session = session_, fn = std::move(fn)]() mutable { fn(*session); });
  }

  const std::shared_ptr<HttpSession> session_;
  const uint64_t seq_;
};

HttpSession::HttpSession(asio::ip::tcp::socket socket, std::shared_ptr<HttpServerState> server,
                         std::function<void(HttpSession*)> on_closed)
    : server_(std::move(server)),
      strand_(asio::make_strand(asio::any_io_executor(socket.get_executor()))),
      socket_(std::move(socket)),
      timer_(strand_),
      write_timer_(strand_),
      on_closed_(std::move(on_closed)) {
  error_code ignored;
  socket_.set_option(asio::ip::tcp::no_delay(true), ignored);
}

HttpSession::~HttpSession() {
  if (on_closed_) on_closed_(this);
}

void HttpSession::Start() {
  asio::post(strand_, [self = shared_from_this()] { self->ReadRequest(); });
}

void HttpSession::Refuse() {
  asio::post(strand_,
             [self = shared_from_this()] { self->SendError(503, "too many connections"); });
}

void HttpSession::CloseWhenIdle() {
  asio::post(strand_, [self = shared_from_this()] {
    if (self->phase_ == Phase::kIdle) self->Close();
  });
}

void HttpSession::CloseNow() {
  asio::post(strand_, [self = shared_from_this()] { self->Disconnected(); });
}

void HttpSession::ArmTimer(absl::Duration after, std::function<void()> action) {
  const uint64_t generation = ++timer_generation_;
  timer_.expires_after(absl::ToChronoNanoseconds(after));
  timer_.async_wait(
      [self = shared_from_this(), generation, action = std::move(action)](error_code error) {
        // An expiry already queued when the timer was re-armed must not fire.
        if (!error && generation == self->timer_generation_) action();
      });
}

void HttpSession::DisarmTimer() {
  ++timer_generation_;
  timer_.cancel();
}

void HttpSession::ReadRequest() {
  if (phase_ == Phase::kClosed) return;
  if (server_->draining.load() && buffer_.size() == 0) return Close();
  phase_ = buffer_.size() == 0 ? Phase::kIdle : Phase::kReading;
  streaming_ = ending_ = head_only_ = false;
  request_id_.clear();
  parser_.emplace();
  parser_->header_limit(static_cast<uint32_t>(server_->options.max_header_bytes));
  parser_->body_limit(server_->options.max_body_bytes);
  const bool idle = phase_ == Phase::kIdle;
  ArmTimer(idle ? server_->options.idle_timeout : server_->options.read_timeout, [this] {
    if (phase_ == Phase::kIdle) return Close();
    SendError(408, "the request did not arrive in time");
  });
  if (!idle) {
    http::async_read_header(
        socket_, buffer_, *parser_,
        asio::bind_executor(strand_, [self = shared_from_this()](error_code error, size_t) {
          self->OnHeader(error);
        }));
    return;
  }
  // The idle time ends with the first byte; from then on the read time-out counts.
  socket_.async_read_some(
      buffer_.prepare(4096),
      asio::bind_executor(strand_, [self = shared_from_this()](error_code error, size_t bytes) {
        if (self->phase_ != Phase::kIdle) return;
        if (error) return self->Close();
        self->buffer_.commit(bytes);
        self->ReadRequest();
      }));
}

void HttpSession::OnHeader(error_code error) {
  if (phase_ != Phase::kReading) return;
  if (error) return OnReadError(error);
  const auto& message = parser_->get();
  http10_ = message.version() < 11;
  const auto expect = message[http::field::expect];
  if (!expect.empty() && boost::beast::iequals(expect, "100-continue") && !parser_->is_done()) {
    Enqueue("HTTP/1.1 100 Continue\r\n\r\n");
  }
  http::async_read(
      socket_, buffer_, *parser_,
      asio::bind_executor(strand_, [self = shared_from_this()](error_code read_error, size_t) {
        self->OnRead(read_error);
      }));
}

void HttpSession::OnRead(error_code error) {
  if (phase_ != Phase::kReading) return;
  if (error) return OnReadError(error);
  Dispatch();
}

void HttpSession::OnReadError(error_code error) {
  if (error == http::error::body_limit) {
    return SendError(413, Cat("the request body is larger than the limit of ",
                              server_->options.max_body_bytes, " bytes (http.max_body)"));
  }
  if (error == http::error::header_limit) {
    return SendError(431, Cat("the request header is larger than the limit of ",
                              server_->options.max_header_bytes, " bytes"));
  }
  if (error == http::error::end_of_stream || error == http::error::partial_message ||
      error.category() != http::make_error_code(http::error::bad_version).category()) {
    return Close();
  }
  SendError(400, Cat("malformed HTTP: ", error.message()));
}

void HttpSession::Dispatch() {
  DisarmTimer();
  phase_ = Phase::kRunning;
  auto message = parser_->release();
  parser_.reset();
  keep_alive_ = message.keep_alive();
  HttpRequest request;
  request.method = std::string(message.method_string());
  head_only_ = request.method == "HEAD";
  const std::string target(message.target());
  const size_t question = target.find('?');
  request.path = target.substr(0, question);
  if (question != std::string::npos) request.query = target.substr(question + 1);
  request.content_type = std::string(message[http::field::content_type]);
  request.authorization = std::string(message[http::field::authorization]);
  const std::string id(message[kRequestIdKey]);
  request.request_id = IsValidRequestId(id) ? id : NewRequestId();
  request_id_ = request.request_id;
  request.body = std::move(message.body());
  auto reply = std::make_shared<Reply>(shared_from_this(), ++seq_);
  Monitor();
  server_->handler(std::move(request), std::move(reply));
}

// While a request runs, a read waits for the client to go away.
void HttpSession::Monitor() {
  if (monitoring_ || buffer_.size() >= kMaxPipelined) return;
  monitoring_ = true;
  socket_.async_read_some(
      buffer_.prepare(4096),
      asio::bind_executor(strand_, [self = shared_from_this()](error_code error, size_t bytes) {
        self->OnMonitor(error, bytes);
      }));
}

void HttpSession::OnMonitor(error_code error, size_t bytes) {
  monitoring_ = false;
  if (phase_ == Phase::kClosed || phase_ == Phase::kLingering) return;
  if (!error) buffer_.commit(bytes);
  if (error && !(read_next_ && error == asio::error::operation_aborted)) return Disconnected();
  if (read_next_) {
    read_next_ = false;
    return ReadRequest();
  }
  Monitor();
}

void HttpSession::SendError(int status, const std::string& message) {
  DisarmTimer();
  const bool was_reading = phase_ == Phase::kReading;
  phase_ = Phase::kRunning;
  keep_alive_ = false;
  if (request_id_.empty()) request_id_ = NewRequestId();
  ++seq_;
  if (was_reading) {
    error_code ignored;
    socket_.cancel(ignored);
  }
  HttpResponse response;
  if (server_->options.error_response) {
    response = server_->options.error_response(status, message);
  } else {
    response.content_type = "text/plain";
    response.body = message;
  }
  response.status = status;
  SendNow(std::move(response));
}

void HttpSession::SendNow(HttpResponse response) {
  if (server_->draining.load()) keep_alive_ = false;
  std::string head =
      Cat(http10_ ? "HTTP/1.0 " : "HTTP/1.1 ", response.status, " ", HttpReason(response.status),
          "\r\ncontent-type: ", HeaderSafe(response.content_type),
          "\r\ncontent-length: ", response.body.size(), "\r\nx-request-id: ", request_id_, "\r\n");
  for (auto& [name, value] : response.headers) {
    head += Cat(name, ": ", HeaderSafe(value), "\r\n");
  }
  head += Cat("connection: ", keep_alive_ ? "keep-alive" : "close", "\r\n\r\n");
  if (!head_only_) head += response.body;
  ending_ = true;
  Enqueue(std::move(head));
}

void HttpSession::Enqueue(std::string bytes, size_t counted) {
  out_.push_back({std::move(bytes), counted});
  Pump();
}

void HttpSession::Pump() {
  if (writing_ || phase_ == Phase::kClosed) return;
  if (out_.empty()) {
    if (ending_) ReplyEnded();
    return;
  }
  writing_ = true;
  write_timer_.expires_after(absl::ToChronoNanoseconds(server_->options.write_timeout));
  write_timer_.async_wait([self = shared_from_this(), front = &out_.front()](error_code error) {
    if (!error && self->writing_ && !self->out_.empty() && &self->out_.front() == front) {
      self->Disconnected();
    }
  });
  asio::async_write(
      socket_, asio::buffer(out_.front().bytes),
      asio::bind_executor(strand_, [self = shared_from_this()](error_code error, size_t) {
        self->OnWritten(error);
      }));
}

void HttpSession::OnWritten(error_code error) {
  writing_ = false;
  write_timer_.cancel();
  if (phase_ == Phase::kClosed) return;
  if (error) return Disconnected();
  unsent_.fetch_sub(out_.front().counted);
  out_.pop_front();
  Pump();
}

void HttpSession::ReplyEnded() {
  ending_ = false;
  std::function<void()> dropped;
  {
    MutexLock lock(mu_);
    dropped = std::exchange(on_disconnect_, nullptr);
  }
  if (!keep_alive_) return Linger();
  if (monitoring_) {
    read_next_ = true;
    error_code ignored;
    socket_.cancel(ignored);
    return;
  }
  ReadRequest();
}

// Closing with unread input would reset the connection, and the client might lose the reply.
void HttpSession::Linger() {
  phase_ = Phase::kLingering;
  error_code ignored;
  socket_.cancel(ignored);
  socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
  discard_.resize(64 << 10);
  ArmTimer(absl::FromChrono(kLingerTime), [this] { Close(); });
  OnLinger({});
}

void HttpSession::OnLinger(error_code error) {
  if (phase_ != Phase::kLingering) return;
  if (error) return Close();
  socket_.async_read_some(
      asio::buffer(discard_),
      asio::bind_executor(strand_, [self = shared_from_this()](error_code read_error, size_t) {
        self->OnLinger(read_error);
      }));
}

void HttpSession::Disconnected() {
  if (phase_ == Phase::kClosed) return;
  Close();
}

void HttpSession::Close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  DisarmTimer();
  write_timer_.cancel();
  error_code ignored;
  socket_.close(ignored);
  std::function<void()> callback;
  {
    MutexLock lock(mu_);
    gone_.store(true);
    callback = std::exchange(on_disconnect_, nullptr);
  }
  if (callback) callback();
}

void HttpSession::ReplySend(uint64_t seq, HttpResponse response) {
  if (seq != seq_ || phase_ != Phase::kRunning || streaming_ || ending_) return;
  SendNow(std::move(response));
  seq_++;  // later calls of this reply are ignored
}

void HttpSession::ReplyBegin(uint64_t seq, std::string content_type, HttpHeaders headers) {
  if (seq != seq_ || phase_ != Phase::kRunning || streaming_) return;
  streaming_ = true;
  if (server_->draining.load() || http10_) keep_alive_ = false;
  std::string head = Cat(http10_ ? "HTTP/1.0" : "HTTP/1.1",
                         " 200 OK\r\ncontent-type: ", HeaderSafe(std::move(content_type)),
                         "\r\nx-request-id: ", request_id_, "\r\n");
  for (auto& [name, value] : headers) {
    head += Cat(name, ": ", HeaderSafe(value), "\r\n");
  }
  if (!http10_) head += "transfer-encoding: chunked\r\n";
  head += Cat("connection: ", keep_alive_ ? "keep-alive" : "close", "\r\n\r\n");
  Enqueue(std::move(head));
}

void HttpSession::ReplyWrite(uint64_t seq, std::string data) {
  const size_t size = data.size();
  if (seq != seq_ || phase_ != Phase::kRunning || !streaming_ || size == 0) {
    unsent_.fetch_sub(size);
    return;
  }
  Enqueue(http10_ ? std::move(data) : Cat(absl::Hex(size), "\r\n", data, "\r\n"), size);
}

void HttpSession::ReplyEnd(uint64_t seq, bool complete) {
  if (seq != seq_ || phase_ != Phase::kRunning || !streaming_) return;
  seq_++;
  if (!complete) keep_alive_ = false;
  if (complete && !http10_) out_.push_back({"0\r\n\r\n", 0});
  ending_ = true;
  Pump();
}

void HttpSession::ReplyDropped(uint64_t seq) {
  if (seq != seq_ || phase_ != Phase::kRunning) return;
  if (streaming_) return ReplyEnd(seq, false);
  SendError(500, "the request was dropped without an answer");
}

}  // namespace baton
