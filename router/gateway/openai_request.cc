#include "router/gateway/openai_request.h"

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string_view>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/base/strings.h"
#include "router/gateway/json.h"
#include "router/gateway/openai_messages.h"

namespace baton {
namespace {

using nlohmann::json;

void ReadSampling(JsonReader& in, v1::SamplingParams* out) {
  if (auto v = in.Number("temperature")) out->set_temperature(*v);
  if (auto v = in.Number("top_p")) out->set_top_p(*v);
  if (auto v = in.Number("min_p")) out->set_min_p(*v);
  if (auto v = in.Number("presence_penalty")) out->set_presence_penalty(*v);
  if (auto v = in.Number("frequency_penalty")) out->set_frequency_penalty(*v);
  if (auto v = in.Number("repetition_penalty")) out->set_repetition_penalty(*v);
  if (auto v = in.Int("top_k")) {
    if (*v < INT32_MIN || *v > INT32_MAX) {
      in.Fail("top_k", Cat("top_k: ", *v, " does not fit 32 bits"));
    } else {
      out->set_top_k(static_cast<int32_t>(*v));
    }
  }
  // Negative seeds are common with OpenAI's clients; any 64 bits are a seed.
  if (auto v = in.Int("seed")) out->set_seed(static_cast<uint64_t>(*v));
  const json* bias = in.Get("logit_bias");
  if (bias == nullptr) return;
  if (!bias->is_object()) {
    return in.Fail("logit_bias", Cat("'logit_bias' must be an object of token id to "
                                     "number, got ",
                                     JsonTypeName(*bias)));
  }
  for (const auto& [key, value] : bias->items()) {
    int64_t id = 0;
    // "5" and "05" would be two keys for one token.
    if (!absl::SimpleAtoi(key, &id) || Cat(id) != key) {
      return in.Fail("logit_bias",
                     Cat("logit_bias: key '", key.substr(0, 40), "' is not a token id"));
    }
    if (!value.is_number()) {
      return in.Fail("logit_bias",
                     Cat("logit_bias['", key, "'] must be a number, got ", JsonTypeName(value)));
    }
    (*out->mutable_logit_bias())[id] = value.get<double>();
  }
}

// What OpenAI's /v1/completions generates when a request names no limit; chat fills the context.
constexpr int64_t kDefaultCompletionTokens = 16;

void ReadStop(JsonReader& in, OpenAiKind kind, v1::StopConditions* out) {
  const auto max_tokens = in.Int("max_tokens");
  const auto max_completion = in.Int("max_completion_tokens");
  if (max_completion) {
    out->set_max_tokens(*max_completion);
  } else if (max_tokens) {
    out->set_max_tokens(*max_tokens);
  } else if (kind == OpenAiKind::kCompletion) {
    out->set_max_tokens(kDefaultCompletionTokens);
  }
  if (auto v = in.Int("min_tokens")) out->set_min_tokens(*v);
  if (auto v = in.Bool("ignore_eos")) out->set_ignore_eos(*v);
  if (auto v = in.Ints("stop_token_ids"))
    out->mutable_stop_token_ids()->Assign(v->begin(), v->end());
  const json* stop = in.Get("stop");
  if (stop == nullptr) return;
  if (stop->is_string()) {
    out->add_stop(stop->get<std::string>());
    return;
  }
  if (!stop->is_array()) {
    return in.Fail(
        "stop", Cat("'stop' must be a string or an array of strings, got ", JsonTypeName(*stop)));
  }
  for (const json& item : *stop) {
    if (!item.is_string()) {
      return in.Fail(
          "stop", Cat("stop[", out->stop_size(), "] must be a string, got ", JsonTypeName(item)));
    }
    out->add_stop(item.get<std::string>());
  }
}

bool ReadTokens(JsonReader& in, const std::string& at, const json& ids,
                v1::GenerateRequest::Tokens* out) {
  for (const json& id : ids) {
    if (!id.is_number_integer() ||
        (id.is_number_unsigned() && id.get<uint64_t>() > uint64_t{INT64_MAX})) {
      in.Fail("prompt",
              Cat(at, "[", out->ids_size(), "] must be a token id, got ", JsonTypeName(id)));
      return false;
    }
    out->add_ids(id.get<int64_t>());
  }
  return true;
}

// `prompt`: a string, a list of strings, a list of token ids or a list of such lists.
void ReadPrompts(JsonReader& in, OpenAiRequest* out) {
  const json* prompt = in.Get("prompt");
  if (prompt == nullptr) return in.Fail("prompt", "'prompt' is missing");
  if (prompt->is_string()) {
    out->prompts.emplace_back().set_text(prompt->get<std::string>());
    return;
  }
  if (!prompt->is_array()) {
    return in.Fail("prompt", Cat("'prompt' must be a string, an array of strings or an "
                                 "array of token ids, got ",
                                 JsonTypeName(*prompt)));
  }
  if (prompt->empty()) return in.Fail("prompt", "'prompt' must not be empty");
  if (prompt->front().is_number()) {
    ReadTokens(in, "prompt", *prompt, out->prompts.emplace_back().mutable_tokens());
    return;
  }
  if (prompt->size() > kMaxChoices) {
    return in.Fail("prompt", Cat("prompt: ", prompt->size(), " prompts are more than the limit of ",
                                 kMaxChoices));
  }
  for (const json& item : *prompt) {
    const std::string at = Cat("prompt[", out->prompts.size(), "]");
    if (item.is_string()) {
      out->prompts.emplace_back().set_text(item.get<std::string>());
    } else if (item.is_array()) {
      if (!ReadTokens(in, at, item, out->prompts.emplace_back().mutable_tokens())) return;
    } else {
      return in.Fail("prompt", Cat(at, " must be a string or an array of token ids, got ",
                                   JsonTypeName(item)));
    }
  }
}

void ReadLogprobs(JsonReader& in, OpenAiRequest* request, v1::SamplingParams* out) {
  if (request->kind == OpenAiKind::kChat) {
    const bool wanted = in.Bool("logprobs").value_or(false);
    const auto top = in.Int("top_logprobs");
    if (top && !wanted && *top != 0) {
      return in.Fail("top_logprobs", "top_logprobs: needs 'logprobs' to be true");
    }
    request->logprobs = wanted;
    if (wanted) out->set_logprobs(true);
    if (wanted && top) {
      if (*top < 0 || *top > 20) {
        return in.Fail("top_logprobs", Cat("top_logprobs: ", *top, " is not in 0..20"));
      }
      out->set_top_logprobs(static_cast<int32_t>(*top));
    }
    return;
  }
  if (const auto count = in.Int("logprobs")) {
    if (*count < 0 || *count > 20) {
      return in.Fail("logprobs", Cat("logprobs: ", *count, " is not in 0..20"));
    }
    request->logprobs = true;
    out->set_logprobs(true);
    out->set_top_logprobs(static_cast<int32_t>(*count));
  }
}

// OpenAI's older fields for functions, and tools without a chat.
void RefuseUnsupportedTools(JsonReader& in, OpenAiKind kind) {
  for (const char* key : {"functions", "tools"}) {
    const json* tools = in.Get(key);
    if (tools == nullptr || (tools->is_array() && tools->empty())) continue;
    if (kind == OpenAiKind::kChat && std::string_view(key) == "tools") continue;
    return in.Fail(key, Cat("'", key, "' is not supported; use 'tools' of a chat completion"));
  }
  const json* call = in.Get("function_call");
  if (call != nullptr && *call != "none" && *call != "auto") {
    in.Fail("function_call", "'function_call' is not supported; use 'tool_choice'");
  }
}

// Fields of other servers that change how a template is applied.
void RefuseUnsupportedTemplating(JsonReader& in, OpenAiKind kind) {
  for (const char* key : {"chat_template", "documents"}) {
    if (in.Get(key) != nullptr) return in.Fail(key, Cat("'", key, "' is not supported"));
  }
  if (in.Bool("continue_final_message").value_or(false)) {
    return in.Fail("continue_final_message", "'continue_final_message' is not supported");
  }
  for (const char* key : {"add_generation_prompt", "add_special_tokens"}) {
    const bool usual = kind == OpenAiKind::kCompletion || std::string_view(key)[4] == 'g';
    if (in.Bool(key).value_or(usual) != usual) {
      return in.Fail(key, Cat(key, ": only ", usual ? "true" : "false", " is supported"));
    }
  }
  if (kind == OpenAiKind::kChat && in.Get("parse_special") != nullptr) {
    in.Fail("parse_special", "parse_special: text of a message is never parsed for special tokens");
  }
}

// Fields of OpenAI's and others' servers that would change the reply, with the value that changes
// nothing.
void RefuseUnlessNeutral(JsonReader& in) {
  static const std::pair<const char*, json> kFields[] = {
      {"audio", false},
      {"prediction", false},
      {"web_search_options", false},
      {"suffix", ""},
      {"prompt_logprobs", false},
      {"guided_json", false},
      {"guided_regex", ""},
      {"guided_choice", false},
      {"guided_grammar", ""},
      {"structured_outputs", false},
      {"json_schema", false},
      {"regex", ""},
      {"ebnf", ""},
      {"use_beam_search", false},
      {"length_penalty", 1},
      {"early_stopping", false},
      {"typical_p", 1},
      {"bad_words", json::array()},
      {"allowed_token_ids", json::array()},
      {"logits_processors", json::array()},
      {"stop_regex", ""},
      {"no_stop_trim", false},
      {"include_stop_str_in_output", false},
      {"skip_special_tokens", true},
      {"spaces_between_special_tokens", true},
      {"truncate_prompt_tokens", false},
      {"lora_path", ""},
  };
  for (const auto& [key, neutral] : kFields) {
    const json* value = in.Get(key);
    if (value != nullptr && *value != neutral) {
      return in.Fail(key, Cat("'", key, "' is not supported"));
    }
  }
}

// Fields that would change the reply and that Baton does not honour are refused by name.
void RefuseUnsupported(JsonReader& in, OpenAiKind kind) {
  if (const json* format = in.Get("response_format")) {
    if (!format->is_object() || !format->contains("type") || !(*format)["type"].is_string()) {
      return in.Fail("response_format", "'response_format' must be an object with a string 'type'");
    }
    const std::string type = (*format)["type"].get<std::string>();
    if (type != "text") {
      return in.Fail("response_format", Cat("response_format: type '", type.substr(0, 40),
                                            "' is not supported yet; only 'text' is"));
    }
  }
  RefuseUnsupportedTools(in, kind);
  RefuseUnsupportedTemplating(in, kind);
  RefuseUnlessNeutral(in);
  if (const json* modalities = in.Get("modalities");
      modalities != nullptr && *modalities != json::array({"text"})) {
    return in.Fail("modalities", "modalities: only [\"text\"] is supported");
  }
  if (const auto best_of = in.Int("best_of"); best_of && *best_of != in.Int("n").value_or(1)) {
    return in.Fail("best_of", "best_of: only the value of 'n' is supported");
  }
  if (kind == OpenAiKind::kChat && in.Bool("echo").value_or(false)) {
    in.Fail("echo", "'echo' is not supported on chat completions");
  }
}

void ReadStream(JsonReader& in, OpenAiRequest* out) {
  out->stream = in.Bool("stream").value_or(false);
  const json* options = in.Get("stream_options");
  if (options == nullptr) return;
  if (!options->is_object()) {
    return in.Fail("stream_options",
                   Cat("'stream_options' must be an object, got ", JsonTypeName(*options)));
  }
  if (!out->stream) {
    return in.Fail("stream_options", "'stream_options' is only allowed when 'stream' is true");
  }
  JsonReader inner(*options);
  out->include_usage = inner.Bool("include_usage").value_or(false);
  if (inner.error()) {
    in.Fail("stream_options.include_usage",
            Cat("stream_options.include_usage: ", inner.error()->message));
  }
}

void ReadEcho(JsonReader& in, OpenAiRequest* out, v1::SamplingParams* sampling) {
  out->echo = in.Bool("echo").value_or(false);
  if (!out->echo) return;
  if (out->logprobs) return sampling->set_prompt_logprobs(true);
  for (const v1::GenerateRequest& prompt : out->prompts) {
    if (!prompt.has_text()) {
      return in.Fail("echo", "echo: of token ids needs 'logprobs', which bring the tokens' text");
    }
  }
}

// What describes the request or the account, and not the reply.
constexpr std::string_view kNoEffect[] = {"user",  "metadata",          "service_tier",
                                          "store", "safety_identifier", "prompt_cache_key"};

std::vector<std::string> Ignored(const JsonReader& in) {
  std::vector<std::string> fields;
  for (const std::string& key : in.Unread()) {
    const auto known = std::find(std::begin(kNoEffect), std::end(kNoEffect), key);
    if (known == std::end(kNoEffect)) fields.push_back(key);
  }
  return fields;
}

}  // namespace

std::variant<OpenAiRequest, ApiError> ParseOpenAiRequest(OpenAiKind kind, std::string_view body) {
  const absl::StatusOr<json> parsed = ParseJson(body);
  if (!parsed.ok()) return InvalidRequest("", std::string(parsed.status().message()));
  if (!parsed->is_object()) {
    return InvalidRequest(
        "", Cat("the request body must be a JSON object, got ", JsonTypeName(*parsed)));
  }
  JsonReader in(*parsed);
  OpenAiRequest out;
  out.kind = kind;
  RefuseUnsupported(in, kind);
  v1::GenerateRequest common;
  common.set_model(in.String("model").value_or(""));
  ReadSampling(in, common.mutable_sampling());
  ReadStop(in, kind, common.mutable_stop());
  ReadLogprobs(in, &out, common.mutable_sampling());
  ReadStream(in, &out);
  const int64_t n = in.Int("n").value_or(1);
  if (n < 1 || n > kMaxChoicesPerPrompt) {
    in.Fail("n", Cat("n: ", n, " is not in 1..", kMaxChoicesPerPrompt));
  }
  if (auto v = in.Int("shared_prefix_tokens")) {
    if (*v < 0 || *v > int64_t{UINT32_MAX}) {
      in.Fail("shared_prefix_tokens",
              Cat("shared_prefix_tokens: ", *v, " is not in 0..", UINT32_MAX));
    }
    common.set_shared_prefix_tokens(static_cast<uint32_t>(*v));
  }
  if (auto v = in.Int("handoff_seam")) {
    if (*v < 0 || *v > int64_t{UINT32_MAX}) {
      in.Fail("handoff_seam", Cat("handoff_seam: ", *v, " is not in 0..", UINT32_MAX));
    }
    common.set_handoff_seam(static_cast<uint32_t>(*v));
  }
  if (auto v = in.Int("priority")) {
    if (*v < INT32_MIN || *v > INT32_MAX) {
      in.Fail("priority", Cat("priority: ", *v, " does not fit 32 bits"));
    }
    common.set_priority(static_cast<int32_t>(*v));
  }
  common.set_strategy(in.String("strategy").value_or(""));
  out.include_timing = in.Bool("include_timing").value_or(false);
  common.set_want_timing(out.include_timing);

  if (kind == OpenAiKind::kChat) {
    ReadChat(in, body, out.prompts.emplace_back().mutable_chat());
  } else {
    ReadPrompts(in, &out);
    if (const auto parse = in.Bool("parse_special")) common.set_parse_special(*parse);
    ReadEcho(in, &out, common.mutable_sampling());
  }
  if (in.error()) return *in.error();
  out.ignored = Ignored(in);
  out.n = static_cast<int>(n);
  if (out.n * static_cast<int64_t>(out.prompts.size()) > kMaxChoices) {
    return InvalidRequest("n", Cat("n: ", out.n, " choices of ", out.prompts.size(),
                                   " prompts are more than the limit of ", kMaxChoices));
  }
  for (v1::GenerateRequest& prompt : out.prompts) prompt.MergeFrom(common);
  return out;
}

}  // namespace baton
