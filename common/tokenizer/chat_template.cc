#include "common/tokenizer/chat_template.h"

#include <array>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/tokenizer/chat_render.h"
#include "common/tokenizer/template_json.h"
#include "common/tokenizer/tokenizer_spec.h"
#include "common/tokenizer/utf8.h"

namespace baton {
namespace {

using Kind = ChatTemplate::Kind;

struct KindInfo {
  Kind kind;
  std::string_view name;
  std::string_view end_of_turn;
  std::string_view marker;    // another token that must be special in the vocabulary
  std::string_view bos = {};  // what it writes itself, first; empty: nothing
  bool tools = false;
  bool thinking = false;
  bool dated = false;
};

constexpr std::string_view kImStart = "<|im_start|>";
constexpr std::string_view kImEnd = "<|im_end|>";
constexpr std::string_view kHeader = "<|start_header_id|>";
constexpr std::string_view kBegin = "<|begin_of_text|>";
constexpr std::string_view kEot = "<|eot_id|>";

constexpr std::array<KindInfo, 13> kKinds = {{
    {Kind::kChatMl, "chatml", kImEnd, kImStart},
    {Kind::kSmolLm2, "smollm2", kImEnd, kImStart},
    {Kind::kQwen2, "qwen2", kImEnd, kImStart},
    {Kind::kQwen25, "qwen2.5", kImEnd, kImStart, "", true},
    {Kind::kQwen25Base, "qwen2.5-base", kImEnd, kImStart, "", true},
    {Kind::kQwen3, "qwen3", kImEnd, kImStart, "", true, true},
    {Kind::kQwen3Instruct2507, "qwen3-2507", kImEnd, kImStart, "", true},
    {Kind::kLlama3, "llama3", kEot, kHeader, kBegin},
    {Kind::kLlama31, "llama3.1", kEot, kHeader, kBegin, true, false, true},
    {Kind::kMistralV01, "mistral-v0.1", "</s>", "<s>", "<s>"},
    {Kind::kMistralV02, "mistral-v0.2", "</s>", "<s>", "<s>"},
    {Kind::kMistralV1, "mistral-v1", "</s>", "<s>", "<s>"},
    {Kind::kMistralV3, "mistral-v3", "</s>", "[INST]", "<s>", true},
}};

const KindInfo& Info(Kind kind) { return kKinds[static_cast<size_t>(kind)]; }

struct KnownTemplate {
  std::string_view digest;  // XXH3-128 of the normalised text
  Kind kind;
};

// Renderings by Jinja, and the texts that may be kept: tests/data/chat_template.
constexpr std::array<KnownTemplate, 16> kKnown = {{
    // llama.cpp's and Hugging Face's default ChatML; with an explicit add_generation_prompt default
    {"f0a6a8278439fdb056191e205a440263", Kind::kChatMl},
    {"a344e8c84fb0282dda206a9e46a4ac01", Kind::kChatMl},
    {"98f63cc3d421d28f99ab995e9629dacd", Kind::kSmolLm2},     // SmolLM2-Instruct
    {"e580c2da83415028d5d943bd0bd9082f", Kind::kQwen2},       // Qwen2-Instruct
    {"e392aa06018503fd2469c9508f79506e", Kind::kQwen25},      // Qwen2.5-Instruct
    {"0fe61c920a9d3925c31e98db8c19d1d3", Kind::kQwen25Base},  // Qwen2.5
    // Qwen3, as first published and as revised for content that is no text
    {"4457e3d12b367a860283f874ff58d644", Kind::kQwen3},
    {"0fab82ce8f4d5175c9e0155c80737cf2", Kind::kQwen3},
    {"cc9ddd5a40bc1c0c8fb5d937b1e8f5d0", Kind::kQwen3Instruct2507},  // Qwen3-Instruct-2507
    {"09facc0e4aa943189799ad6e2dea0594", Kind::kLlama3},             // Llama-3-Instruct
    {"9ddcd6cd71f96dd76ca7779b7730196a", Kind::kLlama31},  // Llama-3.1-Instruct, Llama-3.3-Instruct
    {"573e1bcc8c56f178c3d57e38f5ff0756", Kind::kLlama31},  // Llama-3.2-Instruct
    {"70bf874ad98f31f4b7f52373b11c60d7", Kind::kMistralV01},  // Mistral-7B-Instruct-v0.1, first
    {"f395fc5daa794129a5d004210ebce758", Kind::kMistralV02},  // Mistral-7B-Instruct-v0.2, Mixtral
    {"6aef58edf0d62df9f89cfc57f651ff3d", Kind::kMistralV1},   // both, as revised in 2024
    {"df3ebcd92fa9a63fc6614466504d495b", Kind::kMistralV3},   // Mistral-7B-Instruct-v0.3
}};

constexpr std::string_view kSmolLm2System =
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
constexpr std::string_view kQwen2System = "You are a helpful assistant.";
constexpr std::string_view kQwen25System =
    "You are Qwen, created by Alibaba Cloud. You are a helpful assistant.";

constexpr size_t kMaxDateBytes = 64;

// Line ends become \n; outer white space goes.
std::string Normalise(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      if (i + 1 == text.size() || text[i + 1] != '\n') out.push_back('\n');
      continue;
    }
    out.push_back(text[i]);
  }
  const size_t begin = out.find_first_not_of(" \t\n");
  if (begin == std::string::npos) return "";
  return out.substr(begin, out.find_last_not_of(" \t\n") - begin + 1);
}

absl::Status Bad(const std::string& field, const std::string& what) {
  return absl::InvalidArgumentError(Cat(field, ": ", what));
}

absl::Status CheckText(const std::string& field, std::string_view text) {
  const auto bad = FirstInvalidUtf8(text);
  return bad ? Bad(field, Cat("not valid UTF-8 at byte ", *bad)) : absl::OkStatus();
}

absl::Status CheckRole(const KindInfo& info, size_t i, const ChatMessage& message) {
  const std::string& role = message.role;
  const std::string field = Cat("messages[", i, "]");
  if (role == "tool") {
    if (info.tools) return CheckText(field + ".tool_call_id", message.tool_call_id);
    return Bad(field + ".role",
               Cat("'tool': chat template '", info.name, "' has no place for tool results"));
  }
  if (role != "system" && role != "user" && role != "assistant") {
    return Bad(field + ".role", Cat("'", role.substr(0, 64), "' is not one of system, user, ",
                                    info.tools ? "assistant, tool" : "assistant"));
  }
  if (message.tool_calls.empty()) return absl::OkStatus();
  if (role != "assistant") {
    return Bad(field + ".tool_calls", Cat("a message of role '", role, "' can't have them"));
  }
  if (!info.tools) {
    return Bad(field + ".tool_calls",
               Cat("chat template '", info.name, "' has no place for tool calls"));
  }
  if (message.tool_calls.size() > kMaxToolCalls) {
    return Bad(field + ".tool_calls",
               Cat(message.tool_calls.size(), " calls are more than the limit of ", kMaxToolCalls));
  }
  return absl::OkStatus();
}

absl::StatusOr<TemplateJson> ParseArguments(const std::string& field, const std::string& text) {
  const std::string_view stripped = StripUnicodeSpace(text);
  // Clients send back what a server once wrote for "no arguments".
  const bool none = stripped.empty() || stripped == "null";
  auto json = TemplateJson::Parse(none ? "{}" : std::string_view(text));
  if (!json.ok()) return Bad(field, std::string(json.status().message()));
  if (!json->is_object()) return Bad(field, "must be the JSON text of an object");
  return json;
}

absl::StatusOr<std::vector<TemplateJson>> CheckCalls(size_t i, const ChatMessage& message) {
  std::vector<TemplateJson> arguments;
  for (size_t k = 0; k < message.tool_calls.size(); ++k) {
    const ChatToolCall& call = message.tool_calls[k];
    const std::string field = Cat("messages[", i, "].tool_calls[", k, "]");
    if (call.name.empty()) return Bad(field + ".function.name", "must not be empty");
    BATON_RETURN_IF_ERROR(CheckText(field + ".function.name", call.name));
    BATON_RETURN_IF_ERROR(CheckText(field + ".id", call.id));
    BATON_RETURN_IF_ERROR(CheckText(field + ".function.arguments", call.arguments));
    BATON_ASSIGN_OR_RETURN(TemplateJson json,
                           ParseArguments(field + ".function.arguments", call.arguments));
    arguments.push_back(std::move(json));
  }
  return arguments;
}

absl::StatusOr<TemplateJson> CheckTool(size_t i, const std::string& text) {
  const std::string field = Cat("tools[", i, "]");
  auto tool = TemplateJson::Parse(text);
  if (!tool.ok()) return Bad(field, std::string(tool.status().message()));
  const TemplateJson* type = tool->Find("type");
  if (type == nullptr || type->text() != "function") {
    return Bad(field + ".type", "must be 'function'");
  }
  const TemplateJson* function = tool->Find("function");
  if (function == nullptr || !function->is_object()) {
    return Bad(field + ".function", "must be an object");
  }
  const TemplateJson* name = function->Find("name");
  if (name == nullptr || name->type() != TemplateJson::Type::kString || name->text().empty()) {
    return Bad(field + ".function.name", "must be a string and not empty");
  }
  return tool;
}

absl::Status CheckOptions(const KindInfo& info, const RenderOptions& options) {
  if (!options.tools.empty() && !info.tools) {
    return Bad("tools", Cat("chat template '", info.name, "' has no place for tools"));
  }
  if (options.tools.size() > kMaxChatTools) {
    return Bad("tools",
               Cat(options.tools.size(), " tools are more than the limit of ", kMaxChatTools));
  }
  if (options.enable_thinking == true && !info.thinking) {
    return Bad("enable_thinking", Cat("chat template '", info.name, "' has no thinking"));
  }
  if (options.date.empty()) return absl::OkStatus();
  if (!info.dated) return Bad("date_string", Cat("chat template '", info.name, "' has no date"));
  if (options.date.size() > kMaxDateBytes) {
    return Bad("date_string", Cat("longer than the limit of ", kMaxDateBytes, " bytes"));
  }
  return CheckText("date_string", options.date);
}

absl::StatusOr<ChatInput> CheckInput(const KindInfo& info, absl::Span<const ChatMessage> messages,
                                     const RenderOptions& options) {
  if (messages.empty()) return Bad("messages", "must not be empty");
  if (messages.size() > kMaxChatMessages) {
    return Bad("messages",
               Cat(messages.size(), " messages are more than the limit of ", kMaxChatMessages));
  }
  BATON_RETURN_IF_ERROR(CheckOptions(info, options));
  ChatInput in{messages, {}, {}, options};
  size_t bytes = 0;
  for (const std::string& tool : options.tools) bytes += tool.size();
  for (size_t i = 0; i < messages.size(); ++i) {
    const ChatMessage& message = messages[i];
    BATON_RETURN_IF_ERROR(CheckRole(info, i, message));
    BATON_RETURN_IF_ERROR(CheckText(Cat("messages[", i, "].content"), message.content));
    if (message.reasoning) {
      BATON_RETURN_IF_ERROR(
          CheckText(Cat("messages[", i, "].reasoning_content"), *message.reasoning));
    }
    bytes += message.content.size();
    for (const ChatToolCall& call : message.tool_calls) bytes += call.arguments.size();
    if (bytes > kMaxEncodeBytes) {
      return Bad("messages", Cat("more than the limit of ", kMaxEncodeBytes, " bytes"));
    }
    BATON_ASSIGN_OR_RETURN(std::vector<TemplateJson> arguments, CheckCalls(i, message));
    in.arguments.push_back(std::move(arguments));
  }
  for (size_t i = 0; i < options.tools.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(TemplateJson tool, CheckTool(i, options.tools[i]));
    in.tools.push_back(std::move(tool));
  }
  return in;
}

absl::Status RenderKind(Kind kind, const ChatInput& in, PromptWriter* out) {
  switch (kind) {
    case Kind::kChatMl:
      RenderChatMl(in, "", out);
      break;
    case Kind::kSmolLm2:
      RenderChatMl(in, kSmolLm2System, out);
      break;
    case Kind::kQwen2:
      RenderChatMl(in, kQwen2System, out);
      break;
    case Kind::kQwen25:
      RenderQwen25(in, kQwen25System, out);
      break;
    case Kind::kQwen25Base:
      RenderQwen25(in, kQwen2System, out);
      break;
    case Kind::kQwen3:
    case Kind::kQwen3Instruct2507:
      RenderQwen3(in, kind == Kind::kQwen3, out);
      break;
    case Kind::kLlama3:
      RenderLlama3(in, out);
      break;
    case Kind::kLlama31:
      return RenderLlama31(in, out);
    case Kind::kMistralV01:
    case Kind::kMistralV02:
    case Kind::kMistralV1:
      return RenderMistralV1(in, kind, out);
    case Kind::kMistralV3:
      return RenderMistralV3(in, out);
  }
  return absl::OkStatus();
}

absl::Status CheckVocabulary(const Tokenizer& tokenizer, const KindInfo& info) {
  // A template written for another vocabulary would turn its markers into ordinary text.
  for (const std::string_view token : {info.bos, info.marker, info.end_of_turn}) {
    if (token.empty()) continue;
    const auto id = tokenizer.TokenToId(token);
    if (!id.has_value() || !tokenizer.IsSpecial(*id)) {
      return Bad("chat_template", Cat("'", info.name, "' needs the special token ", token,
                                      ", which the vocabulary lacks"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::Recognise(std::string_view text) {
  const std::string digest = HexDigest(Normalise(text));
  for (const KnownTemplate& known : kKnown) {
    if (known.digest == digest) return ChatTemplate(known.kind);
  }
  return absl::InvalidArgumentError(
      Cat("the model's chat template (XXH3 ", digest,
          ") is not a known one; if its format is one of these, set `chat_template` in the model's "
          "config to it: ",
          Names()));
}

absl::StatusOr<ChatTemplate> ChatTemplate::ByName(std::string_view name) {
  for (const KindInfo& info : kKinds) {
    if (info.name == name) return ChatTemplate(info.kind);
  }
  return Bad("chat_template", Cat("'", name.substr(0, 64), "' is not one of ", Names()));
}

const std::string& ChatTemplate::Names() {
  static const std::string* names = [] {
    auto* text = new std::string;
    for (const KindInfo& info : kKinds) {
      if (!text->empty()) text->append(", ");
      text->append(info.name);
    }
    return text;
  }();
  return *names;
}

absl::StatusOr<std::vector<ChatSegment>> ChatTemplate::Render(
    absl::Span<const ChatMessage> messages, const RenderOptions& options) const {
  BATON_ASSIGN_OR_RETURN(const ChatInput in, CheckInput(Info(kind_), messages, options));
  PromptWriter out;
  BATON_RETURN_IF_ERROR(RenderKind(kind_, in, &out));
  return out.Take();
}

std::string_view ChatTemplate::name() const { return Info(kind_).name; }

std::string_view ChatTemplate::end_of_turn() const { return Info(kind_).end_of_turn; }

bool ChatTemplate::has_tools() const { return Info(kind_).tools; }

absl::StatusOr<std::vector<int32_t>> EncodeChat(const Tokenizer& tokenizer,
                                                const ChatTemplate& chat,
                                                absl::Span<const ChatMessage> messages,
                                                const RenderOptions& options) {
  const KindInfo& info = Info(chat.kind());
  BATON_RETURN_IF_ERROR(CheckVocabulary(tokenizer, info));
  BATON_ASSIGN_OR_RETURN(const auto segments, chat.Render(messages, options));
  std::vector<TextPiece> pieces;
  pieces.reserve(segments.size());
  for (const ChatSegment& segment : segments) {
    pieces.push_back({.text = segment.text,
                      .parse_special = segment.is_template,
                      .literal = !segment.is_template});
  }
  BATON_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer.EncodePieces(pieces));
  // Some kinds write BOS themselves; the others leave it to the tokenizer's rule. Their opening
  // <|im_start|> may be the BOS id without being a BOS.
  if (info.bos.empty() && tokenizer.adds_bos()) ids.insert(ids.begin(), *tokenizer.bos_id());
  return ids;
}

}  // namespace baton
