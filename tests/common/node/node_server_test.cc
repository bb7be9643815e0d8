#include "common/node/node_server.h"

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/prefill.grpc.pb.h"

namespace baton {
namespace {

namespace http = boost::beast::http;
using Tcp = boost::asio::ip::tcp;
using testing::HasSubstr;

int HttpGet(int port, const std::string& target) {
  boost::asio::io_context context;
  Tcp::socket socket(context);
  socket.connect({boost::asio::ip::make_address("127.0.0.1"), static_cast<std::uint16_t>(port)});
  http::request<http::empty_body> request(http::verb::get, target, 11);
  http::write(socket, request);
  boost::beast::flat_buffer buffer;
  http::response<http::string_body> response;
  http::read(socket, buffer, response);
  return response.result_int();
}

struct NodeServerTest : ::testing::Test {
  NodeServerHooks Hooks() {
    NodeServerHooks hooks;
    hooks.service = &service;
    hooks.service_name = "baton.v1.Prefill";
    hooks.draining = [this] { return draining.load(); };
    hooks.tick = [] {};
    hooks.transport = "none";
    return hooks;
  }
  NodeConfig config;
  MetricRegistry metrics;
  v1::Prefill::CallbackService service;
  std::atomic<bool> draining = false;
};

TEST_F(NodeServerTest, HttpAnswersWhileModelsLoadButIsNotReady) {
  auto server = NodeServer::Open("test", config, metrics);
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_EQ(HttpGet((*server)->http_port(), "/health"), 200);
  EXPECT_EQ(HttpGet((*server)->http_port(), "/metrics"), 200);
  EXPECT_EQ(HttpGet((*server)->http_port(), "/readyz"), 503);
  ASSERT_TRUE((*server)->Serve(Hooks()).ok());
  EXPECT_EQ(HttpGet((*server)->http_port(), "/readyz"), 200);
  EXPECT_GT((*server)->grpc_port(), 0);
  draining = true;
  EXPECT_EQ(HttpGet((*server)->http_port(), "/readyz"), 503);
}

// Found before minutes of loading, not after.
TEST_F(NodeServerTest, TakenPortsAreFoundAtOpen) {
  auto first = NodeServer::Open("first", config, metrics);
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE((*first)->Serve(Hooks()).ok());
  NodeConfig second = config;
  second.rpc.port = (*first)->grpc_port();
  EXPECT_THAT(std::string(NodeServer::Open("second", second, metrics).status().message()),
              HasSubstr(absl::StrCat("port ", (*first)->grpc_port(), " is in use")));
  second = config;
  second.http.port = (*first)->http_port();
  const absl::Status status = NodeServer::Open("second", second, metrics).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat((*first)->http_port())));
}

TEST_F(NodeServerTest, TlsFilesAreReadAtOpen) {
  config.rpc.tls.cert = "/no/such/cert.pem";
  config.rpc.tls.key = "/no/such/key.pem";
  EXPECT_THAT(std::string(NodeServer::Open("test", config, metrics).status().message()),
              HasSubstr("/no/such/"));
}

}  // namespace
}  // namespace baton
