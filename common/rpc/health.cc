#include "common/rpc/health.h"

#include <google/protobuf/wrappers.pb.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/impl/codegen/proto_utils.h>

#include <chrono>
#include <future>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/rpc/status.h"

namespace baton {
namespace {

// gRPC ships no header of its health.proto. These two have the same bytes on the wire:
// HealthCheckRequest{string service = 1} and HealthCheckResponse{enum status = 1}.
using HealthRequest = google::protobuf::StringValue;
using HealthResponse = google::protobuf::Int32Value;
constexpr int kServing = 1;

struct Call {
  grpc::ClientContext context;
  HealthRequest request;
  HealthResponse response;
  std::string service;
  absl::AnyInvocable<void(absl::Status)> done;
};

absl::Status Verdict(const Call& call, const grpc::Status& status) {
  if (!status.ok()) return FromGrpcStatus(status);
  if (call.response.value() == kServing) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(call.service.empty() ? "the server" : call.service, " says it is not serving"));
}

}  // namespace

void CheckHealthAsync(const std::shared_ptr<grpc::Channel>& channel, const std::string& service,
                      absl::Duration timeout, absl::AnyInvocable<void(absl::Status)> done) {
  auto call = std::make_shared<Call>();
  call->request.set_value(service);
  call->service = service;
  call->done = std::move(done);
  call->context.set_deadline(absl::ToChronoTime(absl::Now() + timeout));
  grpc::TemplatedGenericStub<HealthRequest, HealthResponse> stub(channel);
  stub.UnaryCall(&call->context, "/grpc.health.v1.Health/Check", grpc::StubOptions(),
                 &call->request, &call->response,
                 [call](grpc::Status status) { call->done(Verdict(*call, status)); });
}

absl::Status CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service,
                         absl::Duration timeout) {
  auto promise = std::make_shared<std::promise<absl::Status>>();
  std::future<absl::Status> result = promise->get_future();
  CheckHealthAsync(channel, service, timeout,
                   [promise](absl::Status status) { promise->set_value(std::move(status)); });
  return result.get();
}

}  // namespace baton
