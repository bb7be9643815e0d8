// HTTP messages between the server and its handler.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baton {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;  // "GET"
  std::string path;    // without the query
  std::string query;   // after '?'
  std::string content_type;
  std::string authorization;  // the header; never logged
  std::string request_id;     // of the client if valid, else generated
  std::string body;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  HttpHeaders headers;  // beside content type, length, request id and connection
  std::string body;
};

// Where one request's reply goes. Either Send, or BeginStream, Write..., EndStream. Thread-safe and
// never blocking; calls out of order or after the end are ignored. Dropping it unanswered closes
// the connection.
class HttpReply {
 public:
  virtual ~HttpReply() = default;
  virtual void Send(HttpResponse response) = 0;
  // 200 with a body of unknown length.
  virtual void BeginStream(std::string_view content_type, HttpHeaders headers) = 0;
  // False: the client is gone, or so much is waiting that it reads too slowly.
  virtual bool Write(std::string_view data) = 0;
  // `complete` false: the connection is broken off, so that the client can't take the body for a
  // whole one.
  virtual void EndStream(bool complete) = 0;
  // `callback` runs at most once, when the client goes away before the reply ended; at once if it
  // has gone already.
  virtual void SetOnDisconnect(std::function<void()> callback) = 0;
};

using HttpHandler = std::function<void(HttpRequest request, std::shared_ptr<HttpReply> reply)>;

std::string_view HttpReason(int status);

}  // namespace baton
