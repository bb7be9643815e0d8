// Channels whose last share goes on one of gRPC's own threads.
#include "common/rpc/callback_threads.h"

#include <grpcpp/channel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "common/rpc/channel.h"
#include "common/rpc/client_stream.h"
#include "proto/decode.grpc.pb.h"

namespace baton {
namespace {

// Where nothing keeps the threads, each round makes one join itself; gRPC aborts in about one of
// 600.
TEST(CallbackThreads, ACallMayHoldTheLastShareOfItsChannel) {
  for (int i = 0; i < 1000; ++i) {
    std::shared_ptr<grpc::Channel> channel = *MakeChannel("127.0.0.1:1");
    const std::weak_ptr<grpc::Channel> watched = channel;
    std::promise<absl::Status> done;
    ClientStream<v1::DecodeEvent>::Start(
        nullptr, v1::DecodeRequest(),
        [&](grpc::ClientContext* context, const v1::DecodeRequest* request,
            grpc::ClientReadReactor<v1::DecodeEvent>* reactor) {
          v1::Decode::NewStub(std::exchange(channel, nullptr))
              ->async()
              ->Generate(context, request, reactor);
        },
        {nullptr, [&done](const absl::Status& status) { done.set_value(status); }});
    EXPECT_EQ(done.get_future().get().code(), absl::StatusCode::kUnavailable);
    // The next round must not lend the threads another channel before this one is gone.
    const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(10);
    while (!watched.expired() && std::chrono::steady_clock::now() < until) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    ASSERT_TRUE(watched.expired());
  }
}

}  // namespace
}  // namespace baton
