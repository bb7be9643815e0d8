// The public gRPC service baton.v1.Inference.
#pragma once

#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "proto/router.grpc.pb.h"
#include "router/gateway/api_keys.h"
#include "router/route/router.h"

namespace baton {

// Thread-safe; handlers only enqueue. A refusal for load carries the trailing metadatum
// `retry-after-ms`. Every reply carries the initial metadatum `x-request-id`.
class InferenceService final : public v1::Inference::CallbackService {
 public:
  // `router` must outlive the server this service runs in. With `keys`, every method needs one:
  // metadatum `authorization`, "Bearer KEY".
  explicit InferenceService(Router& router, ApiKeys keys = {})
      : router_(router), keys_(std::move(keys)) {}

  grpc::ServerWriteReactor<v1::GenerateEvent>* Generate(
      grpc::CallbackServerContext* context, const v1::GenerateRequest* request) override;
  grpc::ServerUnaryReactor* ListModels(grpc::CallbackServerContext* context,
                                       const v1::ListModelsRequest* request,
                                       v1::ListModelsResponse* response) override;
  grpc::ServerUnaryReactor* Tokenize(grpc::CallbackServerContext* context,
                                     const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) override;
  grpc::ServerUnaryReactor* Detokenize(grpc::CallbackServerContext* context,
                                       const v1::DetokenizeRequest* request,
                                       v1::DetokenizeResponse* response) override;

 private:
  // UNAUTHENTICATED, or the caller's tenant.
  absl::StatusOr<std::string> TenantOf(const grpc::CallbackServerContext& context) const;
  // Ends a unary call of somebody unknown; null: goes on.
  grpc::ServerUnaryReactor* Refuse(grpc::CallbackServerContext* context) const;

  Router& router_;
  const ApiKeys keys_;
};

}  // namespace baton
