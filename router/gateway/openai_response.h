// v1::GenerateEvent -> OpenAI reply bodies. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "proto/router.pb.h"
#include "router/gateway/openai_request.h"

namespace baton {

// What all chunks and the whole reply of one request share.
struct ReplyHead {
  OpenAiKind kind = OpenAiKind::kChat;
  std::string id;  // "chatcmpl-..." or "cmpl-..."
  std::string model;
  int64_t created = 0;  // Unix seconds
  bool logprobs = false;
  bool include_usage = false;  // chunks: "usage": null until the last
  bool include_timing = false;
};

// One choice as gathered so far.
struct ChoiceText {
  std::string text;
  std::vector<v1::TokenLogprobs> logprobs;  // with echo, the prompt's first
  std::vector<int64_t> offsets;             // where each of them stands in the text, in characters
  v1::GenerateEvent::Finished finished;
};

// SSE "data: ...\n\n" events. `offsets`: where each token of `logprobs` stands in the choice's
// text.
std::string RoleChunk(const ReplyHead& head, int index);  // chat only: the first chunk of a choice
std::string DeltaChunk(const ReplyHead& head, int index, const v1::GenerateEvent::Delta& delta,
                       const std::vector<int64_t>& offsets);
// Two chunks when the reply made tool calls: those, whole, and the end.
std::string FinishChunk(const ReplyHead& head, int index,
                        const v1::GenerateEvent::Finished& finished);
std::string UsageChunk(const ReplyHead& head, const v1::Usage& usage);
std::string ErrorEvent(const std::string& error_body);
inline constexpr char kDoneEvent[] = "data: [DONE]\n\n";

// The whole reply. `usage` is the sum over the choices.
std::string WholeReply(const ReplyHead& head, const std::vector<ChoiceText>& choices,
                       const v1::Usage& usage);

std::string ModelObject(const v1::ModelInfo& model, int64_t created);
std::string ModelList(const std::vector<v1::ModelInfo>& models, int64_t created);

}  // namespace baton
