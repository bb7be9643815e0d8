#include "common/tokenizer/chat_render.h"

#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/tokenizer/utf8.h"

namespace baton {
namespace {

using Kind = ChatTemplate::Kind;

constexpr std::string_view kLlama31Date = "26 Jul 2024";

absl::Status Bad(const std::string& what) { return absl::InvalidArgumentError(what); }

std::string_view TrimLeft(std::string_view text) {
  while (!text.empty() && text.front() == '\n') text.remove_prefix(1);
  return text;
}

std::string_view TrimRight(std::string_view text) {
  while (!text.empty() && text.back() == '\n') text.remove_suffix(1);
  return text;
}

// ---- Qwen ----

void QwenTools(const ChatInput& in, PromptWriter* out) {
  out->Template(
      "# Tools\n\nYou may call one or more functions to assist with the user query.\n\n"
      "You are provided with function signatures within <tools></tools> XML tags:\n<tools>");
  for (const TemplateJson& tool : in.tools) {
    out->Template("\n");
    out->Json(tool);
  }
  out->Template(
      "\n</tools>\n\nFor each function call, return a json object with function name and arguments "
      "within <tool_call></tool_call> XML tags:\n<tool_call>\n"
      "{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call><|im_end|>\n");
}

void QwenTurn(std::string_view role, std::string_view content, PromptWriter* out) {
  out->Template(Cat("<|im_start|>", role, "\n"));
  out->Content(content);
  out->Template("<|im_end|>\n");
}

void QwenToolCall(const ChatInput& in, size_t message, size_t call, PromptWriter* out) {
  out->Template("<tool_call>\n{\"name\": \"");
  out->Content(in.messages[message].tool_calls[call].name);
  out->Template("\", \"arguments\": ");
  out->Json(in.arguments[message][call]);
  out->Template("}\n</tool_call>");
}

// Neighbouring tool results share one user turn.
void QwenToolResult(const ChatInput& in, size_t i, PromptWriter* out) {
  const auto is_tool = [&](size_t at) { return in.messages[at].role == "tool"; };
  if (i == 0 || !is_tool(i - 1)) out->Template("<|im_start|>user");
  out->Template("\n<tool_response>\n");
  out->Content(in.messages[i].content);
  out->Template("\n</tool_response>");
  if (i + 1 == in.messages.size() || !is_tool(i + 1)) out->Template("<|im_end|>\n");
}

// The last message of a user that is no wrapped tool result; replies behind it keep their thoughts.
size_t LastQuery(absl::Span<const ChatMessage> messages) {
  for (size_t i = messages.size(); i-- > 0;) {
    const std::string& content = messages[i].content;
    if (messages[i].role == "user" &&
        !(content.starts_with("<tool_response>") && content.ends_with("</tool_response>"))) {
      return i;
    }
  }
  return messages.size() - 1;
}

// A reply's thoughts and the rest, given apart or within the content.
struct Reply {
  std::string_view reasoning;
  std::string_view content;
};

Reply SplitReply(const ChatMessage& message) {
  constexpr std::string_view kOpen = "<think>";
  constexpr std::string_view kClose = "</think>";
  const std::string_view content = message.content;
  if (message.reasoning.has_value()) return {*message.reasoning, content};
  const size_t close = content.find(kClose);
  if (close == std::string_view::npos) return {"", content};
  std::string_view reasoning = TrimRight(content.substr(0, close));
  const size_t open = reasoning.rfind(kOpen);
  if (open != std::string_view::npos) reasoning.remove_prefix(open + kOpen.size());
  return {TrimLeft(reasoning), TrimLeft(content.substr(content.rfind(kClose) + kClose.size()))};
}

void Qwen3Reply(const ChatInput& in, size_t i, bool thinking, bool keep_thoughts,
                PromptWriter* out) {
  const ChatMessage& message = in.messages[i];
  const Reply reply = thinking ? SplitReply(message) : Reply{"", message.content};
  const bool last = i + 1 == in.messages.size();
  out->Template("<|im_start|>assistant\n");
  if (thinking && keep_thoughts && (last || !reply.reasoning.empty())) {
    out->Template("<think>\n");
    out->Content(TrimLeft(TrimRight(reply.reasoning)));
    out->Template("\n</think>\n\n");
    out->Content(TrimLeft(reply.content));
  } else {
    out->Content(reply.content);
  }
  for (size_t k = 0; k < message.tool_calls.size(); ++k) {
    if (k > 0 || !reply.content.empty()) out->Template("\n");
    QwenToolCall(in, i, k, out);
  }
  out->Template("<|im_end|>\n");
}

void Qwen25Reply(const ChatInput& in, size_t i, PromptWriter* out) {
  const ChatMessage& message = in.messages[i];
  if (message.tool_calls.empty()) return QwenTurn("assistant", message.content, out);
  out->Template("<|im_start|>assistant");
  if (!message.content.empty()) {
    out->Template("\n");
    out->Content(message.content);
  }
  for (size_t k = 0; k < message.tool_calls.size(); ++k) {
    out->Template("\n");
    QwenToolCall(in, i, k, out);
  }
  out->Template("<|im_end|>\n");
}

// ---- Llama ----

void LlamaHeader(std::string_view role, PromptWriter* out) {
  out->Template(Cat("<|start_header_id|>", role, "<|end_header_id|>\n\n"));
}

void LlamaTurn(std::string_view role, std::string_view content, PromptWriter* out) {
  LlamaHeader(role, out);
  out->Content(StripUnicodeSpace(content));
  out->Template("<|eot_id|>");
}

void Llama31System(const ChatInput& in, std::string_view system, PromptWriter* out) {
  const std::string& date = in.options.date;
  LlamaHeader("system", out);
  if (!in.tools.empty()) out->Template("Environment: ipython\n");
  out->Template("Cutting Knowledge Date: December 2023\nToday Date: ");
  out->Content(date.empty() ? kLlama31Date : std::string_view(date));
  out->Template("\n\n");
  out->Content(StripUnicodeSpace(system));
  out->Template("<|eot_id|>");
}

void Llama31Tools(const ChatInput& in, std::string_view question, PromptWriter* out) {
  LlamaHeader("user", out);
  out->Template(
      "Given the following functions, please respond with a JSON for a function call with its "
      "proper arguments that best answers the given prompt.\n\nRespond in the format "
      "{\"name\": function name, \"parameters\": dictionary of argument name and its value}."
      "Do not use variables.\n\n");
  for (const TemplateJson& tool : in.tools) {
    out->Json(tool, 4);
    out->Template("\n\n");
  }
  out->Content(StripUnicodeSpace(question));
  out->Template("<|eot_id|>");
}

absl::Status Llama31Message(const ChatInput& in, size_t i, PromptWriter* out) {
  const ChatMessage& message = in.messages[i];
  if (message.role == "tool") {
    LlamaHeader("ipython", out);
    out->Content(TemplateJson::Quote(message.content));
    out->Template("<|eot_id|>");
    return absl::OkStatus();
  }
  if (message.tool_calls.empty()) {
    LlamaTurn(message.role, message.content, out);
    return absl::OkStatus();
  }
  if (message.tool_calls.size() > 1) {
    return Bad(Cat("messages[", i, "].tool_calls: ", message.tool_calls.size(),
                   " calls; chat template 'llama3.1' takes one a message"));
  }
  LlamaHeader("assistant", out);
  out->Template("{\"name\": \"");
  out->Content(message.tool_calls[0].name);
  out->Template("\", \"parameters\": ");
  out->Json(in.arguments[i][0]);
  out->Template("}<|eot_id|>");
  return absl::OkStatus();
}

// ---- Mistral ----

// User and assistant in turn from `begin` on; tool traffic doesn't count where it is allowed.
absl::Status CheckAlternation(const ChatInput& in, size_t begin, std::string_view name,
                              bool may_have_system) {
  size_t turn = 0;
  for (size_t i = begin; i < in.messages.size(); ++i) {
    const ChatMessage& message = in.messages[i];
    if (message.role == "tool" || !message.tool_calls.empty()) continue;
    const char* expected = turn % 2 == 0 ? "user" : "assistant";
    if (message.role != expected) {
      return Bad(Cat("messages[", i, "].role: '", message.role, "' where '", expected,
                     "' must come; chat template '", name, "' takes ",
                     may_have_system ? "an optional system message, then user and assistant in turn"
                                     : "no system message, only user and assistant in turn"));
    }
    ++turn;
  }
  return absl::OkStatus();
}

// The template joins strings as they are and writes everything else as JSON.
void MistralTool(const TemplateJson& tool, PromptWriter* out) {
  out->Template("{\"type\": \"function\", \"function\": {");
  bool first = true;
  for (const auto& [key, value] : tool.Find("function")->members()) {
    if (key == "return") continue;
    out->Content(Cat(first ? "\"" : ", \"", key, "\": "));
    first = false;
    if (value.type() == TemplateJson::Type::kString) {
      out->Content(Cat("\"", value.text(), "\""));
    } else {
      out->Json(value);
    }
  }
  out->Template("}}");
}

absl::Status CheckMistralId(const std::string& field, const std::string& id) {
  size_t characters = 0;
  for (std::string_view rest = id; !rest.empty(); rest.remove_prefix(Utf8CharLength(rest))) {
    ++characters;
  }
  if (characters == 9) return absl::OkStatus();
  return Bad(Cat(field, ": '", id.substr(0, 64),
                 "' must have 9 characters for chat template 'mistral-v3'"));
}

absl::Status MistralCalls(const ChatInput& in, size_t i, PromptWriter* out) {
  out->Template("[TOOL_CALLS] [");
  for (size_t k = 0; k < in.arguments[i].size(); ++k) {
    const ChatToolCall& call = in.messages[i].tool_calls[k];
    BATON_RETURN_IF_ERROR(CheckMistralId(Cat("messages[", i, "].tool_calls[", k, "].id"), call.id));
    if (k > 0) out->Template(", ");
    out->Template("{\"name\": ");
    out->Content(TemplateJson::Quote(call.name));
    out->Template(", \"arguments\": ");
    out->Json(in.arguments[i][k]);
    out->Template(", \"id\": \"");
    out->Content(call.id);
    out->Template("\"}");
  }
  out->Template("]</s>");
  return absl::OkStatus();
}

}  // namespace

void PromptWriter::Add(std::string_view text, bool is_template) {
  if (text.empty() || overflow_) return;
  if (text.size() > kMaxEncodeBytes - bytes_) {
    overflow_ = true;
    return;
  }
  bytes_ += text.size();
  if (segments_.empty() || segments_.back().is_template != is_template) {
    segments_.push_back({"", is_template});
  }
  segments_.back().text.append(text);
}

void PromptWriter::Json(const TemplateJson& value, int indent) {
  if (overflow_) return;
  const auto text = value.Dump(kMaxEncodeBytes - bytes_, indent);
  overflow_ = !text.ok();
  if (text.ok()) Content(*text);
}

absl::StatusOr<std::vector<ChatSegment>> PromptWriter::Take() {
  if (!overflow_) return std::move(segments_);
  return Bad(Cat("messages: the prompt is longer than the limit of ", kMaxEncodeBytes, " bytes"));
}

void RenderChatMl(const ChatInput& in, std::string_view default_system, PromptWriter* out) {
  if (!default_system.empty() && in.messages[0].role != "system") {
    out->Template(Cat("<|im_start|>system\n", default_system, "<|im_end|>\n"));
  }
  for (const ChatMessage& message : in.messages) QwenTurn(message.role, message.content, out);
  if (in.options.add_generation_prompt) out->Template("<|im_start|>assistant\n");
}

void RenderQwen25(const ChatInput& in, std::string_view default_system, PromptWriter* out) {
  const bool has_system = in.messages[0].role == "system";
  out->Template("<|im_start|>system\n");
  if (has_system) {
    out->Content(in.messages[0].content);
  } else {
    out->Template(default_system);
  }
  if (in.tools.empty()) {
    out->Template("<|im_end|>\n");
  } else {
    out->Template("\n\n");
    QwenTools(in, out);
  }
  for (size_t i = has_system ? 1 : 0; i < in.messages.size(); ++i) {
    const ChatMessage& message = in.messages[i];
    if (message.role == "assistant") {
      Qwen25Reply(in, i, out);
    } else if (message.role == "tool") {
      QwenToolResult(in, i, out);
    } else {
      QwenTurn(message.role, message.content, out);
    }
  }
  if (in.options.add_generation_prompt) out->Template("<|im_start|>assistant\n");
}

void RenderQwen3(const ChatInput& in, bool thinking, PromptWriter* out) {
  const bool has_system = in.messages[0].role == "system";
  if (!in.tools.empty()) {
    out->Template("<|im_start|>system\n");
    if (has_system) {
      out->Content(in.messages[0].content);
      out->Template("\n\n");
    }
    QwenTools(in, out);
  } else if (has_system) {
    QwenTurn("system", in.messages[0].content, out);
  }
  const size_t last_query = LastQuery(in.messages);
  for (size_t i = has_system ? 1 : 0; i < in.messages.size(); ++i) {
    const ChatMessage& message = in.messages[i];
    if (message.role == "tool") {
      QwenToolResult(in, i, out);
    } else if (message.role != "assistant") {
      QwenTurn(message.role, message.content, out);
    } else {
      Qwen3Reply(in, i, thinking, i > last_query, out);
    }
  }
  if (!in.options.add_generation_prompt) return;
  out->Template("<|im_start|>assistant\n");
  if (thinking && in.options.enable_thinking == false) {
    out->Template("<think>\n\n</think>\n\n");
  }
}

void RenderLlama3(const ChatInput& in, PromptWriter* out) {
  out->Template("<|begin_of_text|>");
  for (const ChatMessage& message : in.messages) LlamaTurn(message.role, message.content, out);
  if (in.options.add_generation_prompt) LlamaHeader("assistant", out);
}

absl::Status RenderLlama31(const ChatInput& in, PromptWriter* out) {
  const bool has_system = in.messages[0].role == "system";
  size_t next = has_system ? 1 : 0;
  out->Template("<|begin_of_text|>");
  Llama31System(in, has_system ? std::string_view(in.messages[0].content) : "", out);
  if (!in.tools.empty()) {
    // The template would put any message here under a user's header.
    if (next == in.messages.size() || in.messages[next].role != "user") {
      return Bad(Cat("messages[", next,
                     "].role: chat template 'llama3.1' writes the tools into the first message of "
                     "the user, which must come here"));
    }
    Llama31Tools(in, in.messages[next].content, out);
    ++next;
  }
  for (; next < in.messages.size(); ++next) {
    BATON_RETURN_IF_ERROR(Llama31Message(in, next, out));
  }
  if (in.options.add_generation_prompt) LlamaHeader("assistant", out);
  return absl::OkStatus();
}

absl::Status RenderMistralV1(const ChatInput& in, Kind kind, PromptWriter* out) {
  const bool current = kind == Kind::kMistralV1;
  const bool has_system = current && in.messages[0].role == "system";
  const size_t begin = has_system ? 1 : 0;
  const std::string_view name = kind == Kind::kMistralV01   ? "mistral-v0.1"
                                : kind == Kind::kMistralV02 ? "mistral-v0.2"
                                                            : "mistral-v1";
  BATON_RETURN_IF_ERROR(CheckAlternation(in, begin, name, current));
  out->Template("<s>");
  for (size_t i = begin; i < in.messages.size(); ++i) {
    const ChatMessage& message = in.messages[i];
    if (current) out->Template(" ");
    if (message.role == "user") {
      out->Template("[INST] ");
      if (i == 1 && has_system) {
        out->Content(in.messages[0].content);
        out->Template("\n\n");
      }
      out->Content(message.content);
      out->Template(" [/INST]");
    } else {
      out->Content(message.content);
      out->Template(kind == Kind::kMistralV01 ? "</s> " : "</s>");
    }
  }
  return absl::OkStatus();
}

absl::Status RenderMistralV3(const ChatInput& in, PromptWriter* out) {
  const bool has_system = in.messages[0].role == "system";
  const size_t begin = has_system ? 1 : 0;
  BATON_RETURN_IF_ERROR(CheckAlternation(in, begin, "mistral-v3", true));
  const ChatMessage* last_user = nullptr;
  for (const ChatMessage& message : in.messages) {
    if (message.role == "user") last_user = &message;
  }
  out->Template("<s>");
  for (size_t i = begin; i < in.messages.size(); ++i) {
    const ChatMessage& message = in.messages[i];
    if (message.role == "user") {
      // Compared by value, as the template does.
      if (!in.tools.empty() && message.content == last_user->content) {
        out->Template("[AVAILABLE_TOOLS] [");
        for (size_t k = 0; k < in.tools.size(); ++k) {
          if (k > 0) out->Template(", ");
          MistralTool(in.tools[k], out);
        }
        out->Template("][/AVAILABLE_TOOLS]");
      }
      out->Template("[INST] ");
      if (has_system && i + 1 == in.messages.size()) {
        out->Content(in.messages[0].content);
        out->Template("\n\n");
      }
      out->Content(message.content);
      out->Template("[/INST]");
    } else if (message.role == "tool") {
      BATON_RETURN_IF_ERROR(
          CheckMistralId(Cat("messages[", i, "].tool_call_id"), message.tool_call_id));
      out->Template("[TOOL_RESULTS] {\"content\": ");
      out->Content(message.content);
      out->Template(", \"call_id\": \"");
      out->Content(message.tool_call_id);
      out->Template("\"}[/TOOL_RESULTS]");
    } else if (!message.tool_calls.empty()) {
      BATON_RETURN_IF_ERROR(MistralCalls(in, i, out));
    } else {
      out->Template(" ");
      out->Content(StripUnicodeSpace(message.content));
      out->Template("</s>");
    }
  }
  return absl::OkStatus();
}

}  // namespace baton
