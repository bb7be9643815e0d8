// Bodies of /v1/chat/completions and /v1/completions; the first byte chooses.
#include "common/base/utf8.h"
#include "nlohmann/json.hpp"
#include "router/gateway/openai_request.h"
#include "tests/fuzz/fuzz_util.h"

namespace baton {
namespace {

void CheckApiError(const ApiError& error) {
  FUZZ_CHECK(error.status >= 400 && error.status < 500);
  FUZZ_CHECK(!error.message.empty());
  const std::string body = ErrorBody(error);
  FUZZ_CHECK(IsValidUtf8(body));
  const auto json = nlohmann::json::parse(body, nullptr, /*allow_exceptions=*/false);
  FUZZ_CHECK(json.is_object() && json.contains("error"));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const OpenAiKind kind = data[0] % 2 == 0 ? OpenAiKind::kChat : OpenAiKind::kCompletion;
  const auto parsed = ParseOpenAiRequest(kind, FuzzText(data, size).substr(1));
  if (const auto* error = std::get_if<ApiError>(&parsed)) {
    CheckApiError(*error);
    return 0;
  }
  const auto& request = std::get<OpenAiRequest>(parsed);
  FUZZ_CHECK(request.kind == kind);
  FUZZ_CHECK(!request.prompts.empty());
  FUZZ_CHECK(request.n >= 1 && request.n <= kMaxChoicesPerPrompt);
  FUZZ_CHECK(request.prompts.size() * static_cast<size_t>(request.n) <= kMaxChoices);
  FUZZ_CHECK(!request.include_usage || request.stream);
  for (const v1::GenerateRequest& prompt : request.prompts) {
    // Protobuf refuses to read a string that is not UTF-8.
    v1::GenerateRequest again;
    FUZZ_CHECK(again.ParseFromString(prompt.SerializeAsString()));
  }
  return 0;
}

}  // namespace baton
