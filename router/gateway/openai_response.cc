#include "router/gateway/openai_response.h"

#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "common/base/strings.h"
#include "common/tokenizer/utf8.h"
#include "router/gateway/json.h"

namespace baton {
namespace {

using nlohmann::json;

std::string Event(const json& data) { return Cat("data: ", DumpJson(data), "\n\n"); }

const char* FinishName(const v1::GenerateEvent::Finished& finished) {
  if (finished.tool_calls_size() > 0) return "tool_calls";
  return finished.reason() == v1::LENGTH ? "length" : "stop";
}

// `indexed`: as in a chunk, where pieces of several calls could mix.
json ToolCalls(const v1::GenerateEvent::Finished& finished, bool indexed) {
  json calls = json::array();
  for (const v1::ToolCall& call : finished.tool_calls()) {
    json entry = {{"id", call.id()},
                  {"type", "function"},
                  {"function", {{"name", call.name()}, {"arguments", call.arguments()}}}};
    if (indexed) entry["index"] = calls.size();
    calls.push_back(std::move(entry));
  }
  return calls;
}

std::string Repaired(std::string_view bytes) {
  std::string out;
  Utf8Repairer repairer;
  repairer.Push(bytes, &out);
  repairer.Flush(&out);
  return out;
}

// Completions have no bytes beside a token's text: a part of a character is spelled out, as
// OpenAI's servers do.
std::string CompletionToken(const std::string& bytes) {
  if (!FirstInvalidUtf8(bytes).has_value()) return bytes;
  std::string out = "bytes:";
  constexpr char kHex[] = "0123456789abcdef";
  for (unsigned char c : bytes) {
    out += "\\x";
    out += kHex[c >> 4];
    out += kHex[c & 15];
  }
  return out;
}

json ChatToken(const v1::TokenLogprob& token) {
  json bytes = json::array();
  for (unsigned char c : token.bytes()) bytes.push_back(c);
  return {{"token", Repaired(token.bytes())},
          {"logprob", token.logprob()},
          {"bytes", std::move(bytes)}};
}

template <typename List>
json ChatLogprobs(const List& tokens) {
  json content = json::array();
  for (const v1::TokenLogprobs& token : tokens) {
    json entry = ChatToken(token.chosen());
    json top = json::array();
    for (const v1::TokenLogprob& other : token.top()) top.push_back(ChatToken(other));
    entry["top_logprobs"] = std::move(top);
    content.push_back(std::move(entry));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

template <typename List>
json CompletionLogprobs(const List& list, const std::vector<int64_t>& offsets) {
  json tokens = json::array();
  json logprobs = json::array();
  json tops = json::array();
  for (const v1::TokenLogprobs& token : list) {
    const std::string text = CompletionToken(token.chosen().bytes());
    tokens.push_back(text);
    if (!token.chosen().has_logprob()) {  // nothing comes before a prompt's first token
      logprobs.push_back(nullptr);
      tops.push_back(nullptr);
      continue;
    }
    logprobs.push_back(token.chosen().logprob());
    json top = json::object();
    for (const v1::TokenLogprob& other : token.top()) {
      top[CompletionToken(other.bytes())] = other.logprob();
    }
    top[text] = token.chosen().logprob();  // OpenAI always includes the chosen one
    tops.push_back(std::move(top));
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", std::move(tops)},
          {"text_offset", offsets}};
}

template <typename List>
json Logprobs(const ReplyHead& head, const List& list, const std::vector<int64_t>& offsets) {
  if (!head.logprobs || list.empty()) return nullptr;
  return head.kind == OpenAiKind::kChat ? ChatLogprobs(list) : CompletionLogprobs(list, offsets);
}

json UsageJson(const v1::Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens()},
          {"completion_tokens", usage.completion_tokens()},
          {"total_tokens", usage.prompt_tokens() + usage.completion_tokens()},
          {"prompt_tokens_details",
           {{"cached_tokens", usage.cached_tokens()},
            {"transferred_tokens", usage.transferred_tokens()}}}};
}

json TimingJson(const v1::Timing& timing) {
  return {{"router_s", timing.router_s()},
          {"queue_s", timing.queue_s()},
          {"prefill_s", timing.prefill_s()},
          {"transfer_s", timing.transfer_s()},
          {"import_s", timing.import_s()},
          {"suffix_s", timing.suffix_s()},
          {"ttft_s", timing.ttft_s()},
          {"e2e_s", timing.e2e_s()},
          {"handoff_bytes", timing.handoff_bytes()},
          {"lane", timing.lane()},
          {"strategy", timing.strategy()},
          {"producer", timing.producer()},
          {"fallback_reason", timing.fallback_reason()}};
}

json Head(const ReplyHead& head, bool chunk) {
  json out = {{"id", head.id}, {"created", head.created}, {"model", head.model}};
  if (head.kind == OpenAiKind::kChat) {
    out["object"] = chunk ? "chat.completion.chunk" : "chat.completion";
  } else {
    out["object"] = "text_completion";
  }
  if (chunk && head.include_usage) out["usage"] = nullptr;
  return out;
}

std::string Chunk(const ReplyHead& head, json choice) {
  json out = Head(head, true);
  out["choices"] = json::array({std::move(choice)});
  return Event(out);
}

json ModelJson(const v1::ModelInfo& model, int64_t created) {
  json out = {{"id", model.name()},
              {"object", "model"},
              {"created", created},
              {"owned_by", "baton"},
              {"max_model_len", model.max_context_tokens()},
              {"ready", model.ready()}};
  if (!model.base_model().empty()) out["root"] = model.base_model();
  return out;
}

}  // namespace

std::string RoleChunk(const ReplyHead& head, int index) {
  return Chunk(head, {{"index", index},
                      {"delta", {{"role", "assistant"}, {"content", ""}}},
                      {"logprobs", nullptr},
                      {"finish_reason", nullptr}});
}

std::string DeltaChunk(const ReplyHead& head, int index, const v1::GenerateEvent::Delta& delta,
                       const std::vector<int64_t>& offsets) {
  json choice = {{"index", index},
                 {"logprobs", Logprobs(head, delta.logprobs(), offsets)},
                 {"finish_reason", nullptr}};
  if (head.kind == OpenAiKind::kChat) {
    choice["delta"] = {{"content", delta.text()}};
  } else {
    choice["text"] = delta.text();
  }
  return Chunk(head, std::move(choice));
}

std::string FinishChunk(const ReplyHead& head, int index,
                        const v1::GenerateEvent::Finished& finished) {
  std::string calls;
  if (finished.tool_calls_size() > 0) {
    calls = Chunk(head, {{"index", index},
                         {"delta", {{"tool_calls", ToolCalls(finished, true)}}},
                         {"logprobs", nullptr},
                         {"finish_reason", nullptr}});
  }
  json choice = {{"index", index}, {"logprobs", nullptr}, {"finish_reason", FinishName(finished)}};
  if (head.kind == OpenAiKind::kChat) {
    choice["delta"] = json::object();
  } else {
    choice["text"] = "";
  }
  if (head.include_timing) choice["timing"] = TimingJson(finished.timing());
  return calls + Chunk(head, std::move(choice));
}

std::string UsageChunk(const ReplyHead& head, const v1::Usage& usage) {
  json out = Head(head, true);
  out["choices"] = json::array();
  out["usage"] = UsageJson(usage);
  return Event(out);
}

std::string ErrorEvent(const std::string& error_body) { return Cat("data: ", error_body, "\n\n"); }

std::string WholeReply(const ReplyHead& head, const std::vector<ChoiceText>& choices,
                       const v1::Usage& usage) {
  json out = Head(head, false);
  json list = json::array();
  for (size_t i = 0; i < choices.size(); ++i) {
    const ChoiceText& choice = choices[i];
    json entry = {{"index", i},
                  {"logprobs", Logprobs(head, choice.logprobs, choice.offsets)},
                  {"finish_reason", FinishName(choice.finished)}};
    if (head.kind == OpenAiKind::kChat) {
      entry["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
      if (choice.finished.tool_calls_size() > 0) {
        entry["message"]["tool_calls"] = ToolCalls(choice.finished, false);
        if (choice.text.empty()) entry["message"]["content"] = nullptr;
      }
    } else {
      entry["text"] = choice.text;
    }
    if (head.include_timing) entry["timing"] = TimingJson(choice.finished.timing());
    list.push_back(std::move(entry));
  }
  out["choices"] = std::move(list);
  out["usage"] = UsageJson(usage);
  return DumpJson(out);
}

std::string ModelObject(const v1::ModelInfo& model, int64_t created) {
  return DumpJson(ModelJson(model, created));
}

std::string ModelList(const std::vector<v1::ModelInfo>& models, int64_t created) {
  json data = json::array();
  for (const v1::ModelInfo& model : models) data.push_back(ModelJson(model, created));
  return DumpJson({{"object", "list"}, {"data", std::move(data)}});
}

}  // namespace baton
