// The known templates as code. Private to chat_template.cc.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/tokenizer/chat_template.h"
#include "common/tokenizer/template_json.h"

namespace baton {

// Checked input: roles are known, fields sit where they belong, JSON is parsed.
struct ChatInput {
  absl::Span<const ChatMessage> messages;
  std::vector<TemplateJson> tools;
  std::vector<std::vector<TemplateJson>> arguments;  // [message][tool call], objects
  const RenderOptions& options;
};

// Collects a prompt of at most kMaxEncodeBytes, so that small input can't become a huge one.
class PromptWriter {
 public:
  void Template(std::string_view text) { Add(text, true); }
  void Content(std::string_view text) { Add(text, false); }
  // `value` as content, written as `tojson` writes it.
  void Json(const TemplateJson& value, int indent = 0);

  // Errors: InvalidArgument when the prompt became too long.
  absl::StatusOr<std::vector<ChatSegment>> Take();

 private:
  void Add(std::string_view text, bool is_template);

  std::vector<ChatSegment> segments_;
  size_t bytes_ = 0;
  bool overflow_ = false;
};

// chatml, smollm2, qwen2; `default_system`: written when the first message is none; "" = nothing.
void RenderChatMl(const ChatInput& in, std::string_view default_system, PromptWriter* out);
void RenderQwen25(const ChatInput& in, std::string_view default_system, PromptWriter* out);
// `thinking`: with the thinking blocks of Qwen3, else as Qwen3-Instruct-2507.
void RenderQwen3(const ChatInput& in, bool thinking, PromptWriter* out);
void RenderLlama3(const ChatInput& in, PromptWriter* out);
// Errors: InvalidArgument naming what the template refuses.
absl::Status RenderLlama31(const ChatInput& in, PromptWriter* out);
// Before tools existed. The first two take no system message.
absl::Status RenderMistralV1(const ChatInput& in, ChatTemplate::Kind kind, PromptWriter* out);
absl::Status RenderMistralV3(const ChatInput& in, PromptWriter* out);

}  // namespace baton
