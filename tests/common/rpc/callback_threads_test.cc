// Channels whose last share goes on one of gRPC's own threads.
#include "common/rpc/callback_threads.h"

#include <grpcpp/channel.h>
#include <gtest/gtest.h>

#include <future>
#include <memory>
#include <utility>

#include "common/rpc/channel.h"
#include "common/rpc/client_stream.h"
#include "proto/decode.grpc.pb.h"

namespace baton {
namespace {

// gRPC aborts in the first rounds where nothing keeps the threads: a thread would join itself.
TEST(CallbackThreads, ACallMayHoldTheLastShareOfItsChannel) {
  for (int i = 0; i < 50; ++i) {
    std::shared_ptr<grpc::Channel> channel = *MakeChannel("127.0.0.1:1");
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
  }
}

}  // namespace
}  // namespace baton
