// The chat of an OpenAI request body: messages, tools and how the template is applied. Private to
// openai_request.cc.
#pragma once

#include <string_view>

#include "proto/router.pb.h"
#include "router/gateway/json.h"

namespace baton {

// Reads `messages`, `tools`, `tool_choice` and `chat_template_kwargs` of a body into `out`. Types
// are checked here, what the model's template takes by the backend. `body`: the text `in` was
// parsed from; tools keep their order of keys and their numbers.
void ReadChat(JsonReader& in, std::string_view body, v1::GenerateRequest::Chat* out);

}  // namespace baton
