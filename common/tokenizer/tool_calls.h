// The calls of functions in a model's reply, cut out of its text.
//
//   ToolCallReader reader(chat, tools);
//   Send(reader.Push(piece));                    // while the reply comes in
//   ToolCallReader::Reply rest = reader.Finish();
//
// A reply that is not exactly in the format its template was trained on stays text, whole.
#pragma once

#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"
#include "common/tokenizer/chat_template.h"

namespace baton {

// Belongs to one reply; not thread-safe.
class ToolCallReader {
 public:
  // `tools`: as in RenderOptions; a template without a place for tools reads no calls.
  ToolCallReader(const ChatTemplate& chat, absl::Span<const std::string> tools);

  // The text so far that can't be part of a call. UTF-8 in, UTF-8 out, whole characters.
  std::string Push(std::string_view text);

  struct Reply {
    std::string text;                 // to be sent yet
    std::vector<ChatToolCall> calls;  // ids of 9 letters and digits, arguments as JSON text
  };
  Reply Finish();

 private:
  enum class Format {
    kNone,
    kTagged,      // Qwen: text, then <tool_call>{"name":, "arguments":}</tool_call>, ...
    kParameters,  // Llama 3.1: {"name":, "parameters":} and nothing else
    kList,        // Mistral: [{"name":, "arguments":}, ...] and nothing else
  };

  std::string PushTagged();
  bool ReadTagged(std::vector<ChatToolCall>* calls) const;
  bool ReadWhole(std::vector<ChatToolCall>* calls) const;

  Format format_ = Format::kNone;
  std::set<std::string, std::less<>> names_;  // of the tools
  std::string held_;
  bool plain_ = false;  // certainly no call
};

}  // namespace baton
