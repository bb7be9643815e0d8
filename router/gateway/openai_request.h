// OpenAI request bodies -> v1::GenerateRequest.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "proto/router.pb.h"
#include "router/gateway/openai_error.h"

namespace baton {

inline constexpr int kMaxChoicesPerPrompt = 16;  // n
inline constexpr int kMaxChoices = 128;          // n times prompts

enum class OpenAiKind { kChat, kCompletion };

struct OpenAiRequest {
  OpenAiKind kind = OpenAiKind::kChat;
  std::vector<v1::GenerateRequest> prompts;  // one per prompt, equal but for the prompt
  int n = 1;                                 // choices per prompt
  bool stream = false;
  bool include_usage = false;  // stream only
  bool echo = false;           // completions only; prompts of token ids need logprobs
  bool logprobs = false;
  bool include_timing = false;       // Baton's extension
  std::vector<std::string> ignored;  // fields nobody here knows, for the reply's header
};

// Checks types, and whatever the backend can't see (n, echo, fields not supported yet); values are
// checked by the backend. A field that would change the reply and is not supported is refused by
// name; one that nobody knows is ignored, as OpenAI's clients expect, and named in `ignored`.
std::variant<OpenAiRequest, ApiError> ParseOpenAiRequest(OpenAiKind kind, std::string_view body);

}  // namespace baton
