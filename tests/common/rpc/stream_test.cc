// StreamWriter and ClientStream against each other.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/base/mutex.h"
#include "common/rpc/call_context.h"
#include "common/rpc/channel.h"
#include "common/rpc/client_stream.h"
#include "common/rpc/rpc_server.h"
#include "common/rpc/stream_writer.h"
#include "proto/decode.grpc.pb.h"

namespace baton {
namespace {

using v1::Decode;
using v1::DecodeEvent;
using v1::DecodeRequest;
using Writer = StreamWriter<DecodeEvent>;

DecodeEvent Text(const std::string& text) {
  DecodeEvent event;
  event.mutable_delta()->set_text(text);
  return event;
}

class StreamService final : public Decode::CallbackService {
 public:
  grpc::ServerWriteReactor<DecodeEvent>* Generate(grpc::CallbackServerContext*,
                                                  const DecodeRequest*) override {
    auto writer = Writer::Create({.max_queued = max_queued});
    on_call(writer);
    return writer->reactor();
  }
  size_t max_queued = 100'000;
  std::function<void(std::shared_ptr<Writer>)> on_call;
};

class Streams : public ::testing::Test {
 protected:
  void SetUp() override {
    server_ = *RpcServer::Start({}, {&service_});
    channel_ = *MakeChannel(server_->address());
    stub_ = Decode::NewStub(channel_);
  }

  std::shared_ptr<ClientStream<DecodeEvent>> Call(std::function<void(DecodeEvent&)> on_message,
                                                  std::promise<absl::Status>* done,
                                                  absl::Duration timeout = absl::Seconds(20)) {
    auto context = std::make_unique<grpc::ClientContext>();
    SetDeadline(*context, absl::Now() + timeout);
    return ClientStream<DecodeEvent>::Start(
        std::move(context), DecodeRequest(),
        [this](grpc::ClientContext* c, const DecodeRequest* r,
               grpc::ClientReadReactor<DecodeEvent>* reactor) {
          stub_->async()->Generate(c, r, reactor);
        },
        {std::move(on_message), [done](absl::Status s) { done->set_value(s); }});
  }

  StreamService service_;
  std::unique_ptr<RpcServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Decode::Stub> stub_;
};

TEST_F(Streams, MessagesFromManyThreadsArriveCompleteAndInOrderPerThread) {
  constexpr int kThreads = 4, kEach = 500;
  std::vector<std::thread> threads;
  service_.on_call = [&](std::shared_ptr<Writer> writer) {
    auto left = std::make_shared<std::atomic<int>>(kThreads);
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([=] {
        for (int i = 0; i < kEach; ++i) {
          DecodeEvent event;
          event.mutable_delta()->add_token_ids(t);
          event.mutable_delta()->add_token_ids(i);
          ASSERT_TRUE(writer->Push(event).ok());
        }
        if (--*left == 0) writer->Finish(absl::OkStatus());
      });
    }
  };
  int next[kThreads] = {};
  bool in_order = true;
  std::promise<absl::Status> done;
  auto call = Call(
      [&](DecodeEvent& e) { in_order &= next[e.delta().token_ids(0)]++ == e.delta().token_ids(1); },
      &done);
  EXPECT_TRUE(done.get_future().get().ok());
  for (auto& t : threads) t.join();
  EXPECT_TRUE(in_order);
  for (int n : next) EXPECT_EQ(n, kEach);
}

TEST_F(Streams, FinishBeforeTheMethodReturnsAndStatusArrives) {
  service_.on_call = [](std::shared_ptr<Writer> writer) {
    EXPECT_TRUE(writer->Push(Text("a")).ok());
    writer->Finish(absl::NotFoundError("no such model"));
    writer->Finish(absl::OkStatus());
    EXPECT_EQ(writer->Push(Text("b")).code(), absl::StatusCode::kFailedPrecondition);
  };
  std::string text;
  std::promise<absl::Status> done;
  Call([&](DecodeEvent& e) { text += e.delta().text(); }, &done);
  EXPECT_EQ(done.get_future().get(), absl::NotFoundError("no such model"));
  EXPECT_EQ(text, "a");
}

TEST_F(Streams, CancelReachesTheServerOnceAndFreesTheWriter) {
  std::promise<std::weak_ptr<Writer>> created;
  std::atomic<int> cancels{0};
  std::promise<void> cancelled;
  service_.on_call = [&](std::shared_ptr<Writer> writer) {
    writer->SetOnCancel([&] {
      if (++cancels == 1) cancelled.set_value();
    });
    EXPECT_TRUE(writer->Push(Text("a")).ok());
    created.set_value(writer);
  };
  std::promise<void> first;
  std::promise<absl::Status> done;
  auto call = Call([&](DecodeEvent&) { first.set_value(); }, &done);
  first.get_future().wait();
  call->Cancel();
  call->Cancel();
  EXPECT_EQ(done.get_future().get().code(), absl::StatusCode::kCancelled);
  ASSERT_EQ(cancelled.get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready);
  std::weak_ptr<Writer> weak = created.get_future().get();
  if (auto writer = weak.lock()) {
    EXPECT_EQ(writer->Push(Text("late")).code(), absl::StatusCode::kCancelled);
    writer->Finish(absl::OkStatus());
  }
  for (int i = 0; i < 500 && !weak.expired(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(weak.expired());
  EXPECT_EQ(cancels, 1);
  call->Cancel();  // long over
}

TEST_F(Streams, DeadlineCountsAsCancel) {
  std::promise<void> cancelled;
  service_.on_call = [&](std::shared_ptr<Writer> writer) {
    writer->SetOnCancel([&] { cancelled.set_value(); });
  };
  std::promise<absl::Status> done;
  Call(nullptr, &done, absl::Milliseconds(200));
  EXPECT_EQ(done.get_future().get().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(cancelled.get_future().wait_for(std::chrono::seconds(5)), std::future_status::ready);
}

TEST_F(Streams, NoCancelAfterAnOrdinaryEnd) {
  std::atomic<int> cancels{0};
  std::weak_ptr<Writer> weak;
  service_.on_call = [&](std::shared_ptr<Writer> writer) {
    writer->SetOnCancel([&] { ++cancels; });
    writer->Finish(absl::OkStatus());
    weak = writer;
  };
  std::promise<absl::Status> done;
  Call(nullptr, &done);
  EXPECT_TRUE(done.get_future().get().ok());
  for (int i = 0; i < 500 && !weak.expired(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_TRUE(weak.expired());
  EXPECT_EQ(cancels, 0);
}

TEST_F(Streams, ASlowReaderMeetsABoundedQueue) {
  service_.max_queued = 8;
  std::promise<int> accepted;
  service_.on_call = [&](std::shared_ptr<Writer> writer) {
    std::thread([&, writer] {
      const std::string big(100'000, 'x');
      int n = 0;
      while (writer->Push(Text(big)).ok() && n < 10'000) ++n;
      accepted.set_value(n);
      writer->Finish(absl::ResourceExhaustedError("slow"));
    }).detach();
  };
  std::promise<void> go;
  std::shared_future<void> gate = go.get_future().share();
  std::atomic<int> read{0};
  std::promise<absl::Status> done;
  auto call = Call(
      [&](DecodeEvent&) {
        gate.wait();
        ++read;
      },
      &done);
  auto future = accepted.get_future();
  ASSERT_EQ(future.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  const int n = future.get();
  EXPECT_LT(n, 1000);
  go.set_value();
  EXPECT_EQ(done.get_future().get().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(read, n);
}

TEST_F(Streams, RandomCancelsLeakNothing) {
  std::atomic<int> live{0};
  std::vector<std::thread> threads;
  Mutex mu;
  service_.on_call = [&](std::shared_ptr<Writer> writer) {
    // Counts itself down when the last of writer and thread is gone.
    std::shared_ptr<void> token(reinterpret_cast<void*>(1), [&](void*) { --live; });
    ++live;
    writer->SetOnCancel([token] {});
    MutexLock lock(mu);
    threads.emplace_back([writer, token] {
      for (int i = 0; i < 200; ++i) {
        if (!writer->Push(Text("x")).ok()) return;
        if (i % 20 == 0) std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
      writer->Finish(absl::OkStatus());
    });
  };
  for (int i = 0; i < 100; ++i) {
    std::promise<absl::Status> done;
    auto call = Call(nullptr, &done);
    std::this_thread::sleep_for(std::chrono::microseconds(37 * i));
    call->Cancel();
    const absl::Status status = done.get_future().get();
    EXPECT_TRUE(status.ok() || absl::IsCancelled(status)) << status;
  }
  server_->Drain(absl::Seconds(5));
  for (auto& t : threads) t.join();
  for (int i = 0; i < 500 && live != 0; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  EXPECT_EQ(live, 0);
}

TEST_F(Streams, ServerGoneMidStream) {
  std::promise<void> first;
  service_.on_call = [&](std::shared_ptr<Writer> writer) { (void)writer->Push(Text("a")); };
  std::promise<absl::Status> done;
  auto call = Call([&](DecodeEvent&) { first.set_value(); }, &done);
  first.get_future().wait();
  server_.reset();
  const absl::Status status = done.get_future().get();
  EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsCancelled(status)) << status;
}

}  // namespace
}  // namespace baton
