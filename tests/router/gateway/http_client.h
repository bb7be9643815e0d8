// A blocking HTTP client over a plain socket, for tests: what goes over the wire is visible.
#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <map>
#include <string>

namespace baton {

struct HttpReplyText {
  int status = 0;
  std::map<std::string, std::string> headers;  // lower-case names
  std::string body;                            // chunks joined
  bool complete = false;                       // the body came to its proper end
};

class HttpClient {
 public:
  explicit HttpClient(int port) {
    fd_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) Close();
  }
  ~HttpClient() { Close(); }
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void Close() {
    if (fd_ >= 0) close(fd_);
    fd_ = -1;
  }
  bool connected() const { return fd_ >= 0; }

  bool Send(const std::string& bytes) {
    size_t sent = 0;
    while (sent < bytes.size()) {
      const ssize_t n = send(fd_, bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent += static_cast<size_t>(n);
    }
    return true;
  }
  void Request(const std::string& method, const std::string& path, const std::string& body = "",
               const std::string& headers = "") {
    Send(method + " " + path + " HTTP/1.1\r\nhost: x\r\n" + headers +
         "content-length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  }
  HttpReplyText Post(const std::string& path, const std::string& body) {
    Request("POST", path, body, "content-type: application/json\r\n");
    return Read();
  }
  HttpReplyText Get(const std::string& path) {
    Request("GET", path);
    return Read();
  }

  // Reads until `needle` came; false at the end of the stream or after `ms`.
  bool ReadUntil(const std::string& needle, int ms = 5000) {
    while (in_.find(needle) == std::string::npos) {
      if (!More(ms)) return false;
    }
    return true;
  }
  // True when the server closes the connection within `ms`.
  bool ClosedWithin(int ms) {
    while (More(ms)) {
    }
    return eof_;
  }

  HttpReplyText Read(bool head_only = false) {
    HttpReplyText reply;
    if (!ReadUntil("\r\n\r\n")) return reply;
    const size_t end = in_.find("\r\n\r\n");
    std::string head = in_.substr(0, end + 2);
    in_.erase(0, end + 4);
    reply.status = std::atoi(head.c_str() + head.find(' '));
    for (size_t at = head.find("\r\n") + 2; at < head.size();) {
      const size_t stop = head.find("\r\n", at);
      const size_t colon = head.find(": ", at);
      reply.headers[head.substr(at, colon - at)] = head.substr(colon + 2, stop - colon - 2);
      at = stop + 2;
    }
    if (head_only) {
      reply.complete = true;
    } else if (reply.headers.count("content-length") != 0) {
      const size_t size = std::stoul(reply.headers["content-length"]);
      while (in_.size() < size && More(5000)) {
      }
      reply.complete = in_.size() >= size;
      reply.body = in_.substr(0, size);
      in_.erase(0, size);
    } else {
      ReadChunks(&reply);
    }
    return reply;
  }

 private:
  void ReadChunks(HttpReplyText* reply) {
    while (true) {
      if (!ReadUntil("\r\n")) return;
      const size_t size = std::strtoul(in_.c_str(), nullptr, 16);
      const size_t start = in_.find("\r\n") + 2;
      while (in_.size() < start + size + 2) {
        if (!More(5000)) return;
      }
      reply->body += in_.substr(start, size);
      in_.erase(0, start + size + 2);
      if (size == 0) {
        reply->complete = true;
        return;
      }
    }
  }
  bool More(int ms) {
    pollfd p{fd_, POLLIN, 0};
    if (fd_ < 0 || poll(&p, 1, ms) <= 0) return false;
    char buffer[65536];
    const ssize_t n = recv(fd_, buffer, sizeof(buffer), 0);
    if (n <= 0) {
      eof_ = true;
      return false;
    }
    in_.append(buffer, static_cast<size_t>(n));
    return true;
  }

  int fd_ = -1;
  bool eof_ = false;
  std::string in_;
};

}  // namespace baton
