// From a DecodeRequest to what the engine runs, with every number checked.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/engine/request.h"
#include "common/node/model_host.h"
#include "decode_node/serve/decode_config.h"
#include "proto/decode.pb.h"

namespace baton {

struct CheckedRequest {
  const HostedModel* model = nullptr;
  EngineRequest request;  // cache keys for the exact space only, no hand-off yet
  Strategy strategy = Strategy::kAuto;
  std::int32_t prefix_tokens = 0;  // shareable, a multiple of 64
  std::int32_t seam = 0;           // last tokens of it that codes do not cover, a multiple of 16
  std::string scope;
  std::vector<std::string> producers;  // gRPC addresses in order of preference
  std::string no_producer_reason;      // why there are none, as the router says
};

// NOT_FOUND: unknown model. INVALID_ARGUMENT: names field, value and limit; a prompt that does not
// fit gives context, prompt and requested tokens.
absl::StatusOr<CheckedRequest> CheckRequest(const v1::DecodeRequest& request, const ModelHost& host,
                                            const DecodeHandoffConfig& defaults);

}  // namespace baton
