// Checks of a v1::GenerateRequest, and the v1::DecodeRequest made of it. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/chat_template.h"
#include "common/tokenizer/tokenizer.h"
#include "proto/decode.pb.h"
#include "proto/router.pb.h"

namespace baton {

// What can be said without a model or a tokenizer: exactly one prompt and not an empty one, UTF-8,
// a known strategy, ranges of sampling and stop values. INVALID_ARGUMENT names field, value, limit.
absl::Status CheckGenerateRequest(const v1::GenerateRequest& request);

struct PromptOptions {
  bool parse_special = true;  // text prompts whose request does not say
  std::string scope;          // cache scope
};

// The prompt's token ids. `chat`: null when the model has no template; a chat prompt is then
// refused. Token prompts are checked against the vocabulary.
absl::StatusOr<std::vector<int32_t>> TokenizePrompt(const v1::GenerateRequest& request,
                                                    const v1::DecodeModel& model,
                                                    const Tokenizer& tokenizer,
                                                    const ChatTemplate* chat,
                                                    const PromptOptions& options);

// Everything but prefill_nodes and resume_token_ids. Checks token ids of logit_bias and stop
// against the vocabulary, and prompt + max_tokens against the context. A seed is drawn when the
// client gave none, so that a replay on another node continues the same stream.
absl::StatusOr<v1::DecodeRequest> MakeDecodeRequest(const v1::GenerateRequest& request,
                                                    const v1::DecodeModel& model,
                                                    const Tokenizer& tokenizer,
                                                    const std::vector<int32_t>& tokens,
                                                    const std::string& request_id,
                                                    const PromptOptions& options);

}  // namespace baton
