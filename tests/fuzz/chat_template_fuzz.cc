// The name of a template, a line "---", then JSON: {"messages": [...], "tools": [...], options}.
// What a message says never becomes a special token.
#include <algorithm>

#include "common/base/utf8.h"
#include "common/tokenizer/chat_template.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/byte_level_tokenizer.h"
#include "tests/fuzz/fuzz_util.h"

namespace baton {
namespace {

using Json = nlohmann::json;

std::string Text(const Json& object, const char* key) {
  const auto it = object.is_object() ? object.find(key) : object.end();
  return it != object.end() && it->is_string() ? it->get<std::string>() : "";
}

const Json& List(const Json& object, const char* key) {
  static const Json& kNone = *new Json(Json::array());
  const auto it = object.is_object() ? object.find(key) : object.end();
  return it != object.end() && it->is_array() ? *it : kNone;
}

ChatMessage Message(const Json& json) {
  ChatMessage message;
  message.role = Text(json, "role");
  message.content = Text(json, "content");
  message.tool_call_id = Text(json, "tool_call_id");
  if (json.is_object() && json.contains("reasoning")) message.reasoning = Text(json, "reasoning");
  for (const Json& call : List(json, "tool_calls")) {
    message.tool_calls.push_back({Text(call, "id"), Text(call, "name"), Text(call, "arguments")});
  }
  return message;
}

const Tokenizer& Vocabulary() {
  static const Tokenizer* const kTokenizer =
      MakeByteLevelTokenizer(
          "", {"<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|begin_of_text|>",
               "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>",
               "<|python_tag|>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]",
               "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]", "[/TOOL_RESULTS]", "[TOOL_CALLS]"})
          .release();
  return *kTokenizer;
}

int64_t Specials(const std::vector<int32_t>& ids) {
  return std::count_if(ids.begin(), ids.end(),
                       [](int32_t id) { return Vocabulary().IsSpecial(id); });
}

std::string Joined(const std::vector<ChatSegment>& segments) {
  std::string text;
  for (const ChatSegment& segment : segments) text += segment.text;
  return text;
}

void CheckRendered(const ChatTemplate& chat, const std::vector<ChatMessage>& messages,
                   RenderOptions options) {
  const auto segments = chat.Render(messages, options);
  if (!segments.ok()) return CheckError(segments.status());
  int64_t specials = 0;
  for (const ChatSegment& segment : *segments) {
    FUZZ_CHECK(IsValidUtf8(segment.text));
    if (!segment.is_template) continue;
    specials += Specials(*Vocabulary().Encode(segment.text, {.parse_special = true}));
  }
  const auto ids = EncodeChat(Vocabulary(), chat, messages, options);
  FUZZ_CHECK(ids.ok());
  FUZZ_CHECK(Specials(*ids) == specials);
  FUZZ_CHECK(*Vocabulary().Decode(*ids) == Joined(*segments));

  // The generation prompt is an ending, nothing else.
  options.add_generation_prompt = true;
  const auto with = chat.Render(messages, options);
  options.add_generation_prompt = false;
  const auto without = chat.Render(messages, options);
  FUZZ_CHECK(with.ok() && without.ok() && Joined(*with).starts_with(Joined(*without)));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parts = FuzzParts(FuzzText(data, size), 2);
  const auto chat = ChatTemplate::ByName(parts[0]);
  if (!chat.ok()) {
    CheckError(chat.status());
    FUZZ_CHECK(!ChatTemplate::Recognise(parts[1]).ok());
    return 0;
  }
  const Json json = Json::parse(parts[1], nullptr, /*allow_exceptions=*/false);
  if (json.is_discarded()) return 0;
  std::vector<ChatMessage> messages;
  for (const Json& message : List(json, "messages")) messages.push_back(Message(message));
  RenderOptions options;
  options.add_generation_prompt = !Text(json, "generation").empty();
  options.date = Text(json, "date");
  for (const Json& tool : List(json, "tools")) {
    options.tools.push_back(tool.is_string()
                                ? tool.get<std::string>()
                                : tool.dump(-1, ' ', false, Json::error_handler_t::replace));
  }
  if (json.is_object() && json.contains("thinking")) {
    options.enable_thinking = !Text(json, "thinking").empty();
  }
  CheckRendered(*chat, messages, options);
  return 0;
}

}  // namespace baton
