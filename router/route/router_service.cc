#include "router/route/router_service.h"

#include <utility>

#include "common/base/mutex.h"
#include "common/base/strings.h"
#include "common/rpc/call_context.h"
#include "common/rpc/status.h"
#include "common/rpc/stream_writer.h"

namespace baton {
namespace {

// Events a client may lag behind before its generation is cancelled.
constexpr size_t kMaxQueuedEvents = 4096;

using Writer = StreamWriter<v1::GenerateEvent>;

class RpcSink final : public GenerationSink {
 public:
  RpcSink(std::shared_ptr<Writer> writer, grpc::CallbackServerContext* context)
      : writer_(std::move(writer)), context_(context) {}

  bool OnEvent(v1::GenerateEvent event) override { return writer_->Push(std::move(event)).ok(); }

  void OnDone(const absl::Status& status) override {
    const absl::Duration hint = RetryAfterOf(status);
    if (hint > absl::ZeroDuration()) {
      MutexLock lock(mu_);
      if (context_ != nullptr) {
        context_->AddTrailingMetadata("retry-after-ms", Cat(absl::ToInt64Milliseconds(hint)));
      }
    }
    writer_->Finish(status);
  }

  // The context lives surely only until the handler returned: a client that goes away ends the
  // call without asking.
  void ForgetContext() {
    MutexLock lock(mu_);
    context_ = nullptr;
  }

 private:
  const std::shared_ptr<Writer> writer_;
  Mutex mu_;
  grpc::CallbackServerContext* context_ GUARDED_BY(mu_);
};

}  // namespace

absl::StatusOr<std::string> InferenceService::TenantOf(
    const grpc::CallbackServerContext& context) const {
  const auto& metadata = context.client_metadata();
  const auto it = metadata.find("authorization");
  return keys_.TenantOf(it == metadata.end()
                            ? std::string_view()
                            : std::string_view(it->second.data(), it->second.size()));
}

grpc::ServerUnaryReactor* InferenceService::Refuse(grpc::CallbackServerContext* context) const {
  const absl::Status status = TenantOf(*context).status();
  if (status.ok()) return nullptr;
  auto* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpcStatus(status));
  return reactor;
}

grpc::ServerWriteReactor<v1::GenerateEvent>* InferenceService::Generate(
    grpc::CallbackServerContext* context, const v1::GenerateRequest* request) {
  auto writer = Writer::Create({.max_queued = kMaxQueuedEvents});
  auto tenant = TenantOf(*context);
  if (!tenant.ok()) {
    writer->Finish(tenant.status());
    return writer->reactor();
  }
  CallInfo info;
  info.tenant = *std::move(tenant);
  info.request_id = RequestIdOf(*context);
  info.deadline = DeadlineOf(*context);
  context->AddInitialMetadata(kRequestIdKey, info.request_id);
  auto sink = std::make_shared<RpcSink>(writer, context);
  auto generation = router_.Generate(std::move(info), *request, sink);
  sink->ForgetContext();
  writer->SetOnCancel([generation] { generation->Cancel(); });
  return writer->reactor();
}

grpc::ServerUnaryReactor* InferenceService::ListModels(grpc::CallbackServerContext* context,
                                                       const v1::ListModelsRequest*,
                                                       v1::ListModelsResponse* response) {
  if (auto* refused = Refuse(context)) return refused;
  for (v1::ModelInfo& model : router_.Models()) *response->add_models() = std::move(model);
  auto* reactor = context->DefaultReactor();
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::Tokenize(grpc::CallbackServerContext* context,
                                                     const v1::TokenizeRequest* request,
                                                     v1::TokenizeResponse* response) {
  if (auto* refused = Refuse(context)) return refused;
  auto* reactor = context->DefaultReactor();
  router_.Tokenize(*request, [reactor, response](absl::StatusOr<v1::TokenizeResponse> result) {
    const grpc::Status status = ToGrpcStatus(result.status());
    if (result.ok()) *response = *std::move(result);
    reactor->Finish(status);
  });
  return reactor;
}

grpc::ServerUnaryReactor* InferenceService::Detokenize(grpc::CallbackServerContext* context,
                                                       const v1::DetokenizeRequest* request,
                                                       v1::DetokenizeResponse* response) {
  if (auto* refused = Refuse(context)) return refused;
  auto* reactor = context->DefaultReactor();
  router_.Detokenize(*request, [reactor, response](absl::StatusOr<v1::DetokenizeResponse> result) {
    const grpc::Status status = ToGrpcStatus(result.status());
    if (result.ok()) *response = *std::move(result);
    reactor->Finish(status);
  });
  return reactor;
}

}  // namespace baton
