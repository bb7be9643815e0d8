#include "common/rpc/rpc_server.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <fstream>
#include <future>
#include <string>
#include <thread>

#include "common/rpc/call_context.h"
#include "common/rpc/channel.h"
#include "common/rpc/health.h"
#include "common/rpc/status.h"
#include "proto/decode.grpc.pb.h"
#include "tests/support/temp_dir.h"

namespace baton {
namespace {

using ::baton::v1::Decode;
using ::baton::v1::DecodeInfo;
using ::baton::v1::DecodeInfoRequest;

class InfoService final : public Decode::CallbackService {
 public:
  grpc::ServerUnaryReactor* Info(grpc::CallbackServerContext* context, const DecodeInfoRequest*,
                                 DecodeInfo* info) override {
    info->mutable_node()->set_name(RequestIdOf(*context));
    info->set_waiting(DeadlineOf(*context) == absl::InfiniteFuture() ? 0 : 1);
    auto* reactor = context->DefaultReactor();
    if (hold.count() > 0) std::this_thread::sleep_for(hold);
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }
  std::chrono::milliseconds hold{0};
};

absl::StatusOr<DecodeInfo> CallInfo(const std::string& address, const ChannelOptions& options = {},
                                    const std::string& id = "") {
  auto channel = MakeChannel(address, options);
  if (!channel.ok()) return channel.status();
  auto stub = Decode::NewStub(*channel);
  grpc::ClientContext context;
  SetDeadline(context, absl::Now() + absl::Seconds(5));
  SetRequestId(context, id);
  DecodeInfo info;
  const absl::Status status = FromGrpcStatus(stub->Info(&context, {}, &info));
  if (!status.ok()) return status;
  return info;
}

TEST(RpcServer, ServesOnAPortItChose) {
  InfoService service;
  auto server = RpcServer::Start({}, {&service});
  ASSERT_TRUE(server.ok()) << server.status();
  EXPECT_GT((*server)->port(), 0);
  auto info = CallInfo((*server)->address(), {}, "abc-1");
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ(info->node().name(), "abc-1");
  EXPECT_EQ(info->waiting(), 1u);
}

TEST(RpcServer, MakesARequestIdWhereTheClientGaveNone) {
  InfoService service;
  auto server = RpcServer::Start({}, {&service});
  auto info = CallInfo((*server)->address());
  ASSERT_TRUE(info.ok());
  EXPECT_EQ(info->node().name().size(), 32u);
}

TEST(RpcServer, ASecondServerOnThePortIsRefused) {
  InfoService service, other;
  auto first = RpcServer::Start({}, {&service});
  ASSERT_TRUE(first.ok());
  auto second = RpcServer::Start({.port = (*first)->port()}, {&other});
  ASSERT_FALSE(second.ok());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  const std::string message(second.status().message());
  EXPECT_NE(message.find((*first)->address()), std::string::npos) << message;
  EXPECT_TRUE(CallInfo((*first)->address()).ok());
}

TEST(RpcServer, ThePortIsFreeAfterwards) {
  InfoService service;
  int port;
  {
    auto server = RpcServer::Start({}, {&service});
    port = (*server)->port();
    ASSERT_TRUE(CallInfo((*server)->address()).ok());
  }
  InfoService again;
  auto server = RpcServer::Start({.port = port}, {&again});
  EXPECT_TRUE(server.ok()) << server.status();
}

TEST(RpcServer, BadAddressesAreNamed) {
  auto port = RpcServer::Start({.port = 70000}, {});
  EXPECT_EQ(port.status().code(), absl::StatusCode::kInvalidArgument);
  // TEST-NET-1: never an address of this machine.
  auto foreign = RpcServer::Start({.bind = "192.0.2.1"}, {});
  EXPECT_EQ(foreign.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_NE(std::string(foreign.status().message()).find("192.0.2.1"), std::string::npos);
}

TEST(RpcServer, CheckSaysWhatStartWould) {
  InfoService service;
  auto server = RpcServer::Start({}, {&service});
  ASSERT_TRUE(server.ok());
  const int port = (*server)->port();
  EXPECT_EQ(RpcServer::Check({.port = port}).code(), absl::StatusCode::kAlreadyExists);
  server->reset();
  EXPECT_TRUE(RpcServer::Check({.port = port}).ok());
  EXPECT_TRUE(RpcServer::Check({.bind = "localhost"}).ok());
  EXPECT_EQ(RpcServer::Check({.port = 70000}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(RpcServer::Check({.bind = "192.0.2.1"}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(RpcServer::Check({.tls = ServerTls{"/no/such/cert", "/no/such/key", ""}}).ok());
  EXPECT_TRUE(RpcServer::Start({.port = port}, {&service}).ok());  // Check left nothing behind
}

TEST(RpcServer, HealthFollowsSetServingAndDrain) {
  InfoService service;
  auto server = RpcServer::Start({}, {&service});
  auto channel = *MakeChannel((*server)->address(), {.own_connection = true});
  const auto check = [&](const std::string& name) {
    return CheckHealth(channel, name, absl::Seconds(5)).code();
  };
  EXPECT_EQ(check(""), absl::StatusCode::kUnavailable);
  (*server)->SetServing("", true);
  EXPECT_EQ(check(""), absl::StatusCode::kOk);
  EXPECT_EQ(check("baton.v1.Nothing"), absl::StatusCode::kNotFound);
  (*server)->SetServing("baton.v1.Decode", true);
  EXPECT_EQ(check("baton.v1.Decode"), absl::StatusCode::kOk);
  (*server)->SetServing("baton.v1.Decode", false);
  EXPECT_EQ(check("baton.v1.Decode"), absl::StatusCode::kUnavailable);
  (*server)->Drain(absl::Seconds(1));
  EXPECT_EQ(check(""), absl::StatusCode::kUnavailable);
}

TEST(RpcServer, HealthCheckOfADeadServerEndsInTime) {
  auto channel = *MakeChannel("127.0.0.1:1");
  const absl::Time start = absl::Now();
  EXPECT_FALSE(CheckHealth(channel, "", absl::Milliseconds(300)).ok());
  EXPECT_LT(absl::Now() - start, absl::Seconds(3));
}

TEST(RpcServer, DrainLetsRunningCallsEnd) {
  InfoService service;
  service.hold = std::chrono::milliseconds(300);
  auto server = RpcServer::Start({}, {&service});
  const std::string address = (*server)->address();
  auto running = std::async(std::launch::async, [&] { return CallInfo(address).status(); });
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  (*server)->Drain(absl::Seconds(5));
  EXPECT_TRUE(running.get().ok());
  EXPECT_FALSE(CallInfo(address, {.own_connection = true}).ok());
}

TEST(RpcServer, ReflectionCanBeLeftOut) {
  for (const bool on : {true, false}) {
    InfoService service;
    auto server = RpcServer::Start({.reflection = on}, {&service});
    // The method of the standard service: UNIMPLEMENTED if absent. It streams both ways; closing
    // without a request ends it well.
    grpc::internal::RpcMethod method(
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        grpc::internal::RpcMethod::BIDI_STREAMING);
    auto channel = *MakeChannel((*server)->address(), {.own_connection = true});
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(5));
    auto* stream = grpc::internal::ClientReaderWriterFactory<DecodeInfoRequest, DecodeInfo>::Create(
        channel.get(), method, &context);
    stream->WritesDone();
    const grpc::Status status = stream->Finish();
    delete stream;
    EXPECT_EQ(status.error_code(), on ? grpc::StatusCode::OK : grpc::StatusCode::UNIMPLEMENTED)
        << status.error_message();
  }
}

TEST(RpcServer, MessagesOverTheLimitAreRefused) {
  InfoService service;
  auto server = RpcServer::Start({.max_message_bytes = 1000}, {&service});
  auto stub = Decode::NewStub(*MakeChannel((*server)->address()));
  grpc::ClientContext context;
  v1::DecodeRequest request;
  request.set_model(std::string(2000, 'x'));
  auto reader = stub->Generate(&context, request);
  v1::DecodeEvent event;
  EXPECT_FALSE(reader->Read(&event));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

// Certificates made afresh by the openssl command.
class Tls : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string script =
        "cd '" + dir_.path() +
        "' && openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=ca -keyout ca.key -out "
        "ca.pem && for n in server client; do openssl req -newkey rsa:2048 -nodes -subj /CN=$n "
        "-keyout $n.key -out $n.csr && printf 'subjectAltName=IP:127.0.0.1' > ext && openssl x509 "
        "-req -in $n.csr -CA ca.pem -CAkey ca.key -CAcreateserial -days 2 -extfile ext -out "
        "$n.pem; done";
    const std::string quiet = "(" + script + ") > /dev/null 2>&1";
    if (std::system(quiet.c_str()) != 0) GTEST_SKIP() << "no openssl command";
  }
  std::string File(const std::string& name) const { return dir_.File(name); }

  TempDir dir_;
};

TEST_F(Tls, MutualTlsLetsOnlyKnownClientsIn) {
  InfoService service;
  RpcServerOptions options;
  options.tls = ServerTls{File("server.pem"), File("server.key"), File("ca.pem")};
  auto server = RpcServer::Start(options, {&service});
  ASSERT_TRUE(server.ok()) << server.status();
  ChannelOptions known;
  known.tls = ChannelTls{File("ca.pem"), File("client.pem"), File("client.key"), ""};
  auto info = CallInfo((*server)->address(), known);
  EXPECT_TRUE(info.ok()) << info.status();
  ChannelOptions anonymous;
  anonymous.tls = ChannelTls{.ca_path = File("ca.pem")};
  EXPECT_FALSE(CallInfo((*server)->address(), anonymous).ok());
  EXPECT_FALSE(CallInfo((*server)->address()).ok());  // plain text
}

TEST_F(Tls, BadFilesAreRefusedAtStart) {
  RpcServerOptions options;
  options.tls = ServerTls{File("server.pem"), File("gone.key"), ""};
  auto missing = RpcServer::Start(options, {});
  EXPECT_EQ(missing.status().code(), absl::StatusCode::kNotFound);
  EXPECT_NE(std::string(missing.status().message()).find("gone.key"), std::string::npos);
  std::ofstream(File("junk.key")) << "junk";
  options.tls->key_path = File("junk.key");
  EXPECT_EQ(RpcServer::Start(options, {}).status().code(), absl::StatusCode::kInvalidArgument);
  options.tls->key_path = File("client.key");  // of another certificate
  EXPECT_EQ(RpcServer::Start(options, {}).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace baton
