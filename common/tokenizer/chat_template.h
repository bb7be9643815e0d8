// Chat messages -> the prompt a model was trained on.
//
// Templates are not run: they are recognised by the exact hash of their text and rendered by code
// that fixtures from Jinja verify. An unknown template is refused with the config override to set,
// so that no model is ever fed an invented format.
//
//   BATON_ASSIGN_OR_RETURN(ChatTemplate chat, ChatTemplate::Recognise(template_text));
//   BATON_ASSIGN_OR_RETURN(auto ids, EncodeChat(*tokenizer, chat, messages));
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/tokenizer/tokenizer.h"

namespace baton {

inline constexpr size_t kMaxChatMessages = 16384;
inline constexpr size_t kMaxChatTools = 1024;
inline constexpr size_t kMaxToolCalls = 256;  // of one message

// A call the model made in an earlier turn.
struct ChatToolCall {
  std::string id;  // mistral-v3: 9 characters
  std::string name;
  // JSON text of an object, UTF-8; "" and "null" stand for {}.
  std::string arguments;
};

struct ChatMessage {
  std::string role;                           // "system", "user", "assistant" or "tool"
  std::string content;                        // UTF-8
  std::vector<ChatToolCall> tool_calls = {};  // assistant
  std::string tool_call_id = {};              // tool: the call it answers
  std::optional<std::string> reasoning = {};  // assistant; where a template has no place for it,
                                              // it is left out, as the templates do
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
  std::string date = {};
  // Functions the model may call: JSON texts {"type": "function", "function": {"name": ...}}.
  std::vector<std::string> tools = {};
  // Qwen3: false closes the thinking block before the reply starts.
  std::optional<bool> enable_thinking = {};
};

class ChatTemplate {
 public:
  enum class Kind {
    kChatMl,
    kSmolLm2,
    kQwen2,
    kQwen25,
    kQwen25Base,
    kQwen3,
    kQwen3Instruct2507,
    kLlama3,
    kLlama31,
    kMistralV01,
    kMistralV02,
    kMistralV1,
    kMistralV3,
  };

  // By the exact hash of `text` after line ends became \n and outer white space was removed.
  // Errors: InvalidArgument naming the `chat_template` override.
  static absl::StatusOr<ChatTemplate> Recognise(std::string_view text);

  // By one of Names(). Errors: InvalidArgument with all of them.
  static absl::StatusOr<ChatTemplate> ByName(std::string_view name);

  // "chatml, smollm2, ...": for messages and help.
  static const std::string& Names();

  // Errors: InvalidArgument naming messages[i].<field> or tools[i], the value and what the template
  // takes: roles and their order, tools and tool calls for a template that has none, text that is
  // not UTF-8, arguments that are not a JSON object, too much of anything. The Llama and Mistral
  // kinds start with BOS.
  absl::StatusOr<std::vector<ChatSegment>> Render(absl::Span<const ChatMessage> messages,
                                                  const RenderOptions& options = {}) const;

  Kind kind() const { return kind_; }
  std::string_view name() const;
  // Token the kind ends a turn with, by text; a generation should stop at it.
  std::string_view end_of_turn() const;
  // Whether it has a place for tools, tool calls and tool results.
  bool has_tools() const;

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
