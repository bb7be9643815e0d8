// Client side of a server-streaming call, with callbacks instead of a reactor class per call.
//
//   auto call = ClientStream<Event>::Start(
//       std::move(context), std::move(request),
//       [stub](auto* context, auto* request, auto* reactor) {
//         stub->async()->Generate(context, request, reactor);
//       },
//       {.on_message = [](Event& e) { … }, .on_done = [](absl::Status s) { … }});
//   call->Cancel();
//
// Lifetime: the call keeps itself alive until on_done has returned; the caller may drop its
// shared_ptr at any time (which does not cancel). Callbacks run one at a time, on gRPC threads;
// on_done is the last one and always comes. The next message is read after on_message returned,
// which is what pushes back on the server.
#pragma once

#include <grpcpp/client_context.h>
#include <grpcpp/support/client_callback.h>

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "common/rpc/status.h"

namespace baton {

template <typename Response>
struct ClientStreamCallbacks {
  std::function<void(Response&)> on_message;  // may move from the message
  std::function<void(absl::Status)> on_done;  // the call's final status
};

template <typename Response>
class ClientStream final : private grpc::ClientReadReactor<Response> {
 public:
  // `start` is called once, before Start returns, with pointers that stay valid until on_done.
  // `context` carries deadline and metadata; null: a fresh one.
  template <typename Request, typename StartFn>
  static std::shared_ptr<ClientStream> Start(std::unique_ptr<grpc::ClientContext> context,
                                             Request request, StartFn start,
                                             ClientStreamCallbacks<Response> callbacks) {
    std::shared_ptr<ClientStream> stream(
        new ClientStream(std::move(context), std::move(callbacks)));
    auto held = std::make_shared<Request>(std::move(request));
    stream->request_ = held;
    stream->self_ = stream;
    grpc::ClientReadReactor<Response>* reactor = stream.get();
    start(stream->context_.get(), static_cast<const Request*>(held.get()), reactor);
    stream->StartRead(&stream->response_);
    stream->StartCall();
    return stream;
  }

  // Ends the call early: on_done comes with CANCELLED unless the call was over already.
  // Any thread, any number of times, also after on_done.
  void Cancel() { context_->TryCancel(); }

 private:
  ClientStream(std::unique_ptr<grpc::ClientContext> context,
               ClientStreamCallbacks<Response> callbacks)
      : context_(context ? std::move(context) : std::make_unique<grpc::ClientContext>()),
        callbacks_(std::move(callbacks)) {}

  void OnReadDone(bool ok) override {
    if (!ok) return;  // OnDone follows
    if (callbacks_.on_message) callbacks_.on_message(response_);
    response_.Clear();
    this->StartRead(&response_);
  }

  void OnDone(const grpc::Status& status) override {
    std::shared_ptr<ClientStream> self = std::move(self_);
    // Callbacks go with the call, so that what they captured is freed even if a caller keeps us.
    ClientStreamCallbacks<Response> callbacks = std::move(callbacks_);
    callbacks_ = {};
    if (callbacks.on_done) callbacks.on_done(FromGrpcStatus(status));
  }

  const std::unique_ptr<grpc::ClientContext> context_;
  ClientStreamCallbacks<Response> callbacks_;  // gRPC threads only, one at a time
  std::shared_ptr<const void> request_;
  Response response_;
  std::shared_ptr<ClientStream> self_;
};

}  // namespace baton
