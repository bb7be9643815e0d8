#include "router/gateway/openai_messages.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "common/base/strings.h"
#include "common/tokenizer/chat_template.h"
#include "common/tokenizer/template_json.h"

namespace baton {
namespace {

using nlohmann::json;

// Null pointer: absent or null.
const json* Field(const json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || it->is_null() ? nullptr : &*it;
}

std::optional<std::string> RequiredString(JsonReader& in, const std::string& at, const json& object,
                                          const char* key) {
  const auto it = object.find(key);
  if (it != object.end() && it->is_string()) return it->get<std::string>();
  const std::string where = Cat(at, ".", key);
  in.Fail(where, Cat(where, " must be a string, got ",
                     it == object.end() ? "nothing" : JsonTypeName(*it)));
  return std::nullopt;
}

// Text of a message: a string, or text parts joined with nothing between them.
std::optional<std::string> ReadContent(JsonReader& in, const std::string& where,
                                       const json& content) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array()) {
    in.Fail(where,
            Cat(where, " must be a string or an array of text parts, got ", JsonTypeName(content)));
    return std::nullopt;
  }
  std::string text;
  size_t index = 0;
  for (const json& part : content) {
    const std::string at = Cat(where, "[", index++, "]");
    if (!part.is_object()) {
      in.Fail(at, Cat(at, " must be an object, got ", JsonTypeName(part)));
      return std::nullopt;
    }
    const auto type = RequiredString(in, at, part, "type");
    if (!type) return std::nullopt;
    if (*type != "text") {
      in.Fail(at + ".type",
              Cat(at, ".type: '", type->substr(0, 40), "' is not supported; only 'text' is"));
      return std::nullopt;
    }
    const auto value = RequiredString(in, at, part, "text");
    if (!value) return std::nullopt;
    text += *value;
  }
  return text;
}

bool ReadToolCall(JsonReader& in, const std::string& at, const json& call, v1::ToolCall* out) {
  if (!call.is_object()) {
    in.Fail(at, Cat(at, " must be an object, got ", JsonTypeName(call)));
    return false;
  }
  if (const json* type = Field(call, "type"); type != nullptr && *type != "function") {
    in.Fail(at + ".type", Cat(at, ".type: only 'function' is supported"));
    return false;
  }
  const auto id = RequiredString(in, at, call, "id");
  if (!id) return false;
  const json* function = Field(call, "function");
  if (function == nullptr || !function->is_object()) {
    in.Fail(at + ".function", Cat(at, ".function must be an object, got ",
                                  function == nullptr ? "nothing" : JsonTypeName(*function)));
    return false;
  }
  const auto name = RequiredString(in, at + ".function", *function, "name");
  if (!name) return false;
  const auto arguments = RequiredString(in, at + ".function", *function, "arguments");
  if (!arguments) return false;
  out->set_id(*id);
  out->set_name(*name);
  out->set_arguments(*arguments);
  return true;
}

bool ReadToolCalls(JsonReader& in, const std::string& at, const json& message,
                   v1::ChatMessage* out) {
  const json* calls = Field(message, "tool_calls");
  if (calls == nullptr) return true;
  const std::string where = at + ".tool_calls";
  if (!calls->is_array()) {
    in.Fail(where, Cat(where, " must be an array, got ", JsonTypeName(*calls)));
    return false;
  }
  if (calls->size() > kMaxToolCalls) {
    in.Fail(where,
            Cat(where, ": ", calls->size(), " calls are more than the limit of ", kMaxToolCalls));
    return false;
  }
  for (const json& call : *calls) {
    const std::string item = Cat(where, "[", out->tool_calls_size(), "]");
    if (!ReadToolCall(in, item, call, out->add_tool_calls())) return false;
  }
  return true;
}

// What belongs to a role, and only to it.
bool ReadRoleFields(JsonReader& in, const std::string& at, const json& message,
                    v1::ChatMessage* out) {
  if (Field(message, "function_call") != nullptr) {
    in.Fail(at + ".function_call", Cat(at, ".function_call is not supported; use tool_calls"));
    return false;
  }
  if (!ReadToolCalls(in, at, message, out)) return false;
  if (out->tool_calls_size() > 0 && out->role() != "assistant") {
    in.Fail(at + ".tool_calls",
            Cat(at, ".tool_calls: a message of role '", out->role(), "' can't have them"));
    return false;
  }
  if (out->role() == "tool") {
    const auto id = RequiredString(in, at, message, "tool_call_id");
    if (!id) return false;
    out->set_tool_call_id(*id);
  }
  for (const char* key : {"reasoning_content", "reasoning"}) {
    const json* reasoning = Field(message, key);
    if (reasoning == nullptr || out->role() != "assistant") continue;
    if (!reasoning->is_string()) {
      in.Fail(Cat(at, ".", key),
              Cat(at, ".", key, " must be a string, got ", JsonTypeName(*reasoning)));
      return false;
    }
    out->set_reasoning_content(reasoning->get<std::string>());
    break;
  }
  return true;
}

void ReadMessage(JsonReader& in, const std::string& at, const json& message, v1::ChatMessage* out) {
  if (!message.is_object()) {
    return in.Fail(at, Cat(at, " must be an object, got ", JsonTypeName(message)));
  }
  const auto role = RequiredString(in, at, message, "role");
  if (!role) return;
  // OpenAI's newer word for it.
  const std::string name = *role == "developer" ? "system" : *role;
  if (name != "system" && name != "user" && name != "assistant" && name != "tool") {
    return in.Fail(at + ".role",
                   Cat(at, ".role: '", name.substr(0, 40),
                       "' is not supported; allowed: system, developer, user, assistant, tool"));
  }
  out->set_role(name);
  if (!ReadRoleFields(in, at, message, out)) return;
  const auto content = message.find("content");
  const bool none = content == message.end() || content->is_null();
  if (none && out->tool_calls_size() > 0) return;  // only calls: the content is empty
  if (content == message.end()) {
    return in.Fail(at + ".content", Cat(at, ".content is missing"));
  }
  const auto text = ReadContent(in, at + ".content", *content);
  if (text) out->set_content(*text);
}

void ReadMessages(JsonReader& in, v1::GenerateRequest::Chat* out) {
  const json* messages = in.Get("messages");
  if (messages == nullptr) return in.Fail("messages", "'messages' is missing");
  if (!messages->is_array()) {
    return in.Fail("messages", Cat("'messages' must be an array, got ", JsonTypeName(*messages)));
  }
  if (messages->empty()) return in.Fail("messages", "'messages' must not be empty");
  if (messages->size() > kMaxChatMessages) {
    return in.Fail("messages", Cat("messages: ", messages->size(),
                                   " messages are more than the limit of ", kMaxChatMessages));
  }
  for (const json& message : *messages) {
    if (in.error()) return;
    const std::string at = Cat("messages[", out->messages_size(), "]");
    ReadMessage(in, at, message, out->add_messages());
  }
}

// True when the model may call tools.
bool ReadToolChoice(JsonReader& in) {
  const json* choice = in.Get("tool_choice");
  if (choice == nullptr || *choice == "auto") return true;
  if (*choice == "none") return false;
  in.Fail("tool_choice", choice->is_string()
                             ? Cat("tool_choice: '", choice->get<std::string>().substr(0, 40),
                                   "' is not supported; allowed: none, auto")
                             : "tool_choice: naming a function is not supported; "
                               "allowed: none, auto");
  return false;
}

void ReadTools(JsonReader& in, std::string_view body, v1::GenerateRequest::Chat* out) {
  const json* tools = in.Get("tools");
  const bool may_call = ReadToolChoice(in);
  if (tools == nullptr) return;
  if (!tools->is_array()) {
    return in.Fail("tools", Cat("'tools' must be an array, got ", JsonTypeName(*tools)));
  }
  if (tools->size() > kMaxChatTools) {
    return in.Fail("tools", Cat("tools: ", tools->size(), " tools are more than the limit of ",
                                kMaxChatTools));
  }
  size_t index = 0;
  for (const json& tool : *tools) {
    const std::string at = Cat("tools[", index++, "]");
    if (!tool.is_object()) {
      return in.Fail(at, Cat(at, " must be an object, got ", JsonTypeName(tool)));
    }
    const auto type = RequiredString(in, at, tool, "type");
    if (!type) return;
    if (*type != "function") {
      return in.Fail(at + ".type", Cat(at, ".type: '", type->substr(0, 40),
                                       "' is not supported; only 'function' is"));
    }
  }
  if (tools->empty() || !may_call) return;
  if (!in.Bool("parallel_tool_calls").value_or(true)) {
    return in.Fail("parallel_tool_calls", "parallel_tool_calls: false is not supported");
  }
  // Once more, by a reader that keeps the order a model was trained on.
  const auto ordered = TemplateJson::Parse(body);
  const TemplateJson* list = ordered.ok() ? ordered->Find("tools") : nullptr;
  if (list == nullptr) return in.Fail("tools", "'tools' can't be read");
  for (const TemplateJson& tool : list->items()) {
    auto text = tool.Dump(kMaxEncodeBytes);
    if (!text.ok()) return in.Fail("tools", Cat("tools: ", text.status().message()));
    out->add_tools(*std::move(text));
  }
}

void ReadTemplateKwargs(JsonReader& in, v1::GenerateRequest::Chat* out) {
  const json* kwargs = in.Get("chat_template_kwargs");
  if (kwargs == nullptr) return;
  if (!kwargs->is_object()) {
    return in.Fail("chat_template_kwargs",
                   Cat("'chat_template_kwargs' must be an object, got ", JsonTypeName(*kwargs)));
  }
  for (const auto& [key, value] : kwargs->items()) {
    const std::string at = Cat("chat_template_kwargs.", key.substr(0, 40));
    if (value.is_null()) continue;
    if (key == "enable_thinking") {
      if (!value.is_boolean()) {
        return in.Fail(at, Cat(at, " must be a boolean, got ", JsonTypeName(value)));
      }
      out->set_enable_thinking(value.get<bool>());
    } else if (key == "date_string") {
      if (!value.is_string()) {
        return in.Fail(at, Cat(at, " must be a string, got ", JsonTypeName(value)));
      }
      out->set_date_string(value.get<std::string>());
    } else {
      return in.Fail(at, Cat(at, " is not supported; allowed: enable_thinking, date_string"));
    }
  }
}

}  // namespace

void ReadChat(JsonReader& in, std::string_view body, v1::GenerateRequest::Chat* out) {
  ReadMessages(in, out);
  ReadTools(in, body, out);
  ReadTemplateKwargs(in, out);
}

}  // namespace baton
