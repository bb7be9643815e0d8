// An OpenAiService behind real sockets, in front of a fake backend.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "router/gateway/http_server.h"
#include "router/gateway/openai_service.h"
#include "tests/router/gateway/fake_backend.h"
#include "tests/router/gateway/http_client.h"

namespace baton {

inline constexpr char kChatUrl[] = "/v1/chat/completions";
inline constexpr char kCompletionsUrl[] = "/v1/completions";

class GatewayFixture : public testing::Test {
 protected:
  void SetUp() override {
    HttpServerOptions options;
    options.error_response = OpenAiService::ErrorFor;
    service_ = std::make_unique<OpenAiService>(backend_, registry_);
    auto server = HttpServer::Start(options, [this](HttpRequest r, auto reply) {
      service_->Handle(std::move(r), std::move(reply));
    });
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    client_ = std::make_unique<HttpClient>(server_->port());
  }

  HttpReplyText Complete(const std::string& fields) {
    return client_->Post(kCompletionsUrl, R"({"model":"tiny",)" + fields + "}");
  }
  HttpReplyText Chat(const std::string& fields) {
    return client_->Post(
        kChatUrl, R"({"model":"tiny","messages":[{"role":"user","content":"hi"}],)" + fields + "}");
  }

  // The data of each SSE event of a reply; checks the framing and that the last is [DONE].
  static std::vector<nlohmann::json> Chunks(const HttpReplyText& reply) {
    std::vector<nlohmann::json> chunks;
    for (size_t at = 0; at < reply.body.size();) {
      const size_t end = reply.body.find("\n\n", at);
      if (end == std::string::npos || reply.body.compare(at, 6, "data: ") != 0) {
        ADD_FAILURE() << "not an SSE event: " << reply.body.substr(at, 80);
        break;
      }
      const std::string data = reply.body.substr(at + 6, end - at - 6);
      at = end + 2;
      if (data != "[DONE]") {
        chunks.push_back(nlohmann::json::parse(data));
      } else {
        EXPECT_EQ(at, reply.body.size()) << "something after [DONE]";
      }
    }
    return chunks;
  }

  FakeBackend backend_;
  MetricRegistry registry_;
  std::unique_ptr<OpenAiService> service_;
  std::unique_ptr<HttpServer> server_;
  std::unique_ptr<HttpClient> client_;
};

}  // namespace baton
