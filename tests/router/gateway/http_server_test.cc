#include "router/gateway/http_server.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "common/base/mutex.h"
#include "tests/router/gateway/http_client.h"

namespace baton {
namespace {

std::unique_ptr<HttpServer> Echo(HttpServerOptions options) {
  auto server = HttpServer::Start(options, [](HttpRequest request, auto reply) {
    HttpResponse response;
    response.body = request.method + " " + request.path + " " + request.body;
    reply->Send(std::move(response));
  });
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

TEST(HttpServerTest, KeepsTheConnectionAndAnswersPipelinedRequestsInOrder) {
  auto server = Echo({});
  HttpClient client(server->port());
  EXPECT_EQ(client.Post("/a?q=1", "1").body, "POST /a 1");
  client.Send("GET /b HTTP/1.1\r\nhost: x\r\n\r\nGET /c HTTP/1.1\r\nhost: x\r\n\r\n");
  EXPECT_EQ(client.Read().body, "GET /b ");
  EXPECT_EQ(client.Read().body, "GET /c ");
  client.Send("GET /d HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
  EXPECT_EQ(client.Read().body, "GET /d ");
  EXPECT_TRUE(client.ClosedWithin(2000));
}

TEST(HttpServerTest, AnswersExpectContinue) {
  auto server = Echo({});
  HttpClient client(server->port());
  client.Send("POST /x HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 3\r\n\r\n");
  ASSERT_TRUE(client.ReadUntil("100 Continue\r\n\r\n"));
  EXPECT_EQ(client.Read(/*head_only=*/true).status, 100);
  client.Send("abc");
  EXPECT_EQ(client.Read().body, "POST /x abc");
}

TEST(HttpServerTest, Limits) {
  HttpServerOptions options;
  options.max_body_bytes = 1000;
  options.max_header_bytes = 2000;
  auto server = Echo(options);
  HttpClient body(server->port());
  EXPECT_EQ(body.Post("/x", std::string(1001, 'x')).status, 413);
  EXPECT_TRUE(body.ClosedWithin(4000));
  HttpClient chunked(server->port());
  chunked.Send("POST /x HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n7d0\r\n" +
               std::string(2000, 'x') + "\r\n0\r\n\r\n");
  EXPECT_EQ(chunked.Read().status, 413);
  HttpClient header(server->port());
  header.Request("GET", "/x", "", "a: " + std::string(3000, 'x') + "\r\n");
  EXPECT_EQ(header.Read().status, 431);
  HttpClient garbage(server->port());
  garbage.Send("this is not HTTP\r\n\r\n");
  EXPECT_EQ(garbage.Read().status, 400);
  HttpClient fine(server->port());
  EXPECT_EQ(fine.Post("/x", std::string(1000, 'x')).status, 200);
}

TEST(HttpServerTest, SlowRequestsGet408AndIdleConnectionsAreClosed) {
  HttpServerOptions options;
  options.read_timeout = absl::Milliseconds(150);
  options.idle_timeout = absl::Milliseconds(300);
  auto server = Echo(options);
  HttpClient slow(server->port());
  slow.Send("POST /x HTTP/1.1\r\nhost: x\r\ncontent-length: 10\r\n\r\nabc");
  EXPECT_EQ(slow.Read().status, 408);
  HttpClient half(server->port());
  half.Send("GET /x HT");
  EXPECT_EQ(half.Read().status, 408);
  HttpClient idle(server->port());
  EXPECT_TRUE(idle.ClosedWithin(2000));
}

TEST(HttpServerTest, TooManyConnectionsAreRefused) {
  HttpServerOptions options;
  options.max_connections = 1;
  auto server = Echo(options);
  HttpClient first(server->port());
  EXPECT_EQ(first.Get("/a").status, 200);
  HttpClient second(server->port());
  EXPECT_EQ(second.Read().status, 503);
  EXPECT_EQ(first.Get("/b").status, 200);
}

TEST(HttpServerTest, ASecondServerOnThePortIsAnErrorNamingIt) {
  auto server = Echo({});
  HttpServerOptions options;
  options.port = server->port();
  const auto second = HttpServer::Start(options, [](HttpRequest, auto) {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()),
              testing::HasSubstr(std::to_string(server->port())));
  options.bind = "not an address";
  options.port = 0;
  EXPECT_EQ(HttpServer::Start(options, [](HttpRequest, auto) {}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(HttpServerTest, DrainLetsARunningStreamEnd) {
  std::shared_ptr<HttpReply> held;
  Mutex mu;
  CondVar came;
  auto server = HttpServer::Start({}, [&](HttpRequest, auto reply) {
    reply->BeginStream("text/plain", {});
    reply->Write("one ");
    MutexLock lock(mu);
    held = reply;
    came.NotifyAll();
  });
  ASSERT_TRUE(server.ok());
  HttpClient idle((*server)->port());
  HttpClient client((*server)->port());
  client.Request("GET", "/x");
  {
    MutexLock lock(mu);
    came.Wait(mu, [&] { return held != nullptr; });
  }
  std::thread drain([&] { (*server)->Drain(absl::Seconds(10)); });
  EXPECT_TRUE(idle.ClosedWithin(2000));
  held->Write("two");
  held->EndStream(true);
  held.reset();
  const HttpReplyText reply = client.Read();
  EXPECT_EQ(reply.body, "one two");
  EXPECT_TRUE(reply.complete);
  client.Close();
  drain.join();
  EXPECT_EQ((*server)->connections(), 0u);
  HttpClient late((*server)->port());
  EXPECT_FALSE(late.connected());
}

TEST(HttpServerTest, ADroppedReplyIsA500AndDrainCutsOffWhatHangs) {
  std::shared_ptr<HttpReply> held;
  auto server = HttpServer::Start({}, [&](HttpRequest request, auto reply) {
    if (request.path == "/hang") held = reply;
  });
  ASSERT_TRUE(server.ok());
  HttpClient dropped((*server)->port());
  EXPECT_EQ(dropped.Get("/drop").status, 500);
  HttpClient hanging((*server)->port());
  hanging.Request("GET", "/hang");
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  (*server)->Drain(absl::Milliseconds(200));
  EXPECT_TRUE(hanging.ClosedWithin(1000));
  EXPECT_FALSE(held->Write("late"));
  held.reset();
}

}  // namespace
}  // namespace baton
