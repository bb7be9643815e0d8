#include "tools/inference_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "spdlog/fmt/fmt.h"

namespace baton::tools {

absl::StatusOr<std::unique_ptr<InferenceClient>> InferenceClient::Connect(
    const std::string& address, const std::string& api_key) {
  // gRPC ends the process over a header value that it can't send.
  if (!std::all_of(api_key.begin(), api_key.end(), absl::ascii_isprint)) {
    return absl::InvalidArgumentError(
        "the API key holds characters other than printable ASCII (a line end?)");
  }
  BATON_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, MakeChannel(address));
  return std::unique_ptr<InferenceClient>(
      new InferenceClient(v1::Inference::NewStub(channel), api_key));
}

// A deadline of zero means none.
void InferenceClient::Prepare(grpc::ClientContext& context,
                              std::chrono::milliseconds deadline) const {
  if (deadline.count() > 0) context.set_deadline(std::chrono::system_clock::now() + deadline);
  if (!api_key_.empty()) context.AddMetadata("authorization", "Bearer " + api_key_);
}

absl::StatusOr<GenerationRecord> InferenceClient::Generate(
    const v1::GenerateRequest& request, const std::function<void(const std::string&)>& on_text,
    std::chrono::milliseconds deadline) {
  grpc::ClientContext context;
  Prepare(context, deadline);
  GenerationRecord record;
  record.sent = std::chrono::steady_clock::now();
  auto reader = stub_->Generate(&context, request);
  v1::GenerateEvent event;
  while (reader->Read(&event)) {
    if (event.has_finished()) {
      record.finished = event.finished();
      continue;
    }
    const auto& delta = event.delta();
    if (delta.token_ids_size() > 0) {
      record.deltas.push_back(std::chrono::steady_clock::now());
      record.delta_tokens.push_back(delta.token_ids_size());
      record.token_ids.insert(record.token_ids.end(), delta.token_ids().begin(),
                              delta.token_ids().end());
    }
    record.text += delta.text();
    if (on_text && !delta.text().empty()) on_text(delta.text());
  }
  BATON_RETURN_IF_ERROR(FromGrpcStatus(reader->Finish()));
  return record;
}

absl::StatusOr<v1::ListModelsResponse> InferenceClient::ListModels() {
  grpc::ClientContext context;
  Prepare(context, std::chrono::seconds(10));
  v1::ListModelsResponse response;
  BATON_RETURN_IF_ERROR(FromGrpcStatus(stub_->ListModels(&context, {}, &response)));
  return response;
}

absl::StatusOr<std::vector<std::int64_t>> InferenceClient::Tokenize(const std::string& model,
                                                                    const std::string& text) {
  grpc::ClientContext context;
  Prepare(context, std::chrono::seconds(30));
  v1::TokenizeRequest request;
  request.set_model(model);
  request.set_text(text);
  v1::TokenizeResponse response;
  BATON_RETURN_IF_ERROR(FromGrpcStatus(stub_->Tokenize(&context, request, &response)));
  return std::vector<std::int64_t>(response.ids().begin(), response.ids().end());
}

std::string DescribeTiming(const v1::GenerateEvent::Finished& finished) {
  const v1::Timing& t = finished.timing();
  const v1::Usage& u = finished.usage();
  std::string out = fmt::format(
      "ttft {:.1f} ms (router {:.1f}, queue {:.1f}, prefill {:.1f}, transfer {:.1f}, import "
      "{:.1f}, "
      "suffix {:.1f}); end to end {:.1f} ms\n",
      (t.ttft_s() + t.router_s()) * 1e3, t.router_s() * 1e3, t.queue_s() * 1e3, t.prefill_s() * 1e3,
      t.transfer_s() * 1e3, t.import_s() * 1e3, t.suffix_s() * 1e3, t.e2e_s() * 1e3);
  out += fmt::format(
      "prompt {} tokens: {} from the cache, {} handed off ({} bytes, strategy {}{}{}); {} tokens "
      "generated",
      u.prompt_tokens(), u.cached_tokens(), u.transferred_tokens(), t.handoff_bytes(),
      t.strategy().empty() ? "oracle" : t.strategy(),
      t.producer().empty() ? "" : ", from " + t.producer(),
      t.lane().empty() ? "" : ", lane " + t.lane(), u.completion_tokens());
  if (!t.fallback_reason().empty()) out += "\nno hand-off: " + t.fallback_reason();
  return out;
}

}  // namespace baton::tools
