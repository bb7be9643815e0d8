// Chat messages -> the prompt a model was trained on.
//
// Templates are not run: they are recognised by the exact hash of their text and rendered by code
// that fixtures from Jinja verify. An unknown template is refused with the config override to set,
// so that no model is ever fed an invented format.
//
//   BATON_ASSIGN_OR_RETURN(ChatTemplate chat, ChatTemplate::Recognise(template_text));
//   BATON_ASSIGN_OR_RETURN(auto ids, EncodeChat(*tokenizer, chat, messages));
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/tokenizer/tokenizer.h"

namespace baton {

struct ChatMessage {
  std::string role;     // "system", "user" or "assistant"
  std::string content;  // UTF-8
};

// A piece of a rendered prompt. Template pieces may hold special tokens; message content may not,
// whatever it says.
struct ChatSegment {
  std::string text;
  bool is_template = false;
};

struct RenderOptions {
  bool add_generation_prompt = true;
  // "Today Date" of the Llama 3.1/3.2 system turn, as "26 Jul 2024". Empty: the template's own
  // default, so that equal conversations stay equal prompts over days.
  std::string date;
};

class ChatTemplate {
 public:
  enum class Kind { kChatMl, kSmolLm2, kLlama3, kLlama31 };

  // By the exact hash of `text` after line ends became \n and outer white space was removed.
  // Errors: InvalidArgument naming the `chat_template` override.
  static absl::StatusOr<ChatTemplate> Recognise(std::string_view text);

  // "chatml", "smollm2" (ChatML with SmolLM2's default system message), "llama3", "llama3.1".
  static absl::StatusOr<ChatTemplate> ByName(std::string_view name);

  // Errors: InvalidArgument naming messages[i].role or .content; no messages; text that is not
  // UTF-8. The Llama kinds start with BOS.
  absl::StatusOr<std::vector<ChatSegment>> Render(absl::Span<const ChatMessage> messages,
                                                  const RenderOptions& options = {}) const;

  Kind kind() const { return kind_; }
  std::string_view name() const;
  // Tokens the kind ends a turn with, by text; a generation should stop at it.
  std::string_view end_of_turn() const;

 private:
  explicit ChatTemplate(Kind kind) : kind_(kind) {}
  Kind kind_;
};

// Renders and tokenises; special tokens come from the template alone. Exactly one BOS: the
// template's own, or the one the tokenizer's rule adds when the template has none.
absl::StatusOr<std::vector<int32_t>> EncodeChat(const Tokenizer& tokenizer,
                                                const ChatTemplate& chat,
                                                absl::Span<const ChatMessage> messages,
                                                const RenderOptions& options = {});

}  // namespace baton
