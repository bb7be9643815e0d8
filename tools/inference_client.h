// Blocking client of the public gRPC API, as the command line uses it.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "proto/router.grpc.pb.h"

namespace baton::tools {

// Where the command line's --api-key comes from when it isn't given: not in anybody's process list.
inline constexpr char kApiKeyVariable[] = "BATON_API_KEY";

// When things came back, as the client saw them.
struct GenerationRecord {
  std::chrono::steady_clock::time_point sent;
  std::vector<std::chrono::steady_clock::time_point> deltas;  // one per delta that held tokens
  std::vector<int> delta_tokens;                              // tokens in each of them
  std::string text;
  std::vector<std::int64_t> token_ids;
  v1::GenerateEvent::Finished finished;
};

class InferenceClient {
 public:
  // `address`: host:port of a router; `api_key`: sent with every call unless empty.
  // INVALID_ARGUMENT: not an address, or a key with other than printable ASCII characters.
  static absl::StatusOr<std::unique_ptr<InferenceClient>> Connect(const std::string& address,
                                                                  const std::string& api_key);

  // Returns when the stream ended. `on_text` (may be null) gets each piece as it arrives. A
  // deadline of zero means none. The status is the server's own.
  absl::StatusOr<GenerationRecord> Generate(const v1::GenerateRequest& request,
                                            const std::function<void(const std::string&)>& on_text,
                                            std::chrono::milliseconds deadline = {});
  absl::StatusOr<v1::ListModelsResponse> ListModels();
  absl::StatusOr<std::vector<std::int64_t>> Tokenize(const std::string& model,
                                                     const std::string& text);

 private:
  InferenceClient(std::unique_ptr<v1::Inference::Stub> stub, std::string api_key)
      : stub_(std::move(stub)), api_key_(std::move(api_key)) {}
  void Prepare(grpc::ClientContext& context, std::chrono::milliseconds deadline) const;

  const std::unique_ptr<v1::Inference::Stub> stub_;
  const std::string api_key_;
};

// "ttft 82.1 ms = router 0.4 + queue 1.2 + ..." for people.
std::string DescribeTiming(const v1::GenerateEvent::Finished& finished);

}  // namespace baton::tools
