#include "router/route/request_check.h"

#include <algorithm>
#include <iterator>
#include <optional>

#include "absl/strings/str_join.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/prefix_hash/block_hash.h"
#include "common/sampling/validate.h"
#include "common/tokenizer/utf8.h"

namespace baton {
namespace {

absl::Status Bad(const std::string& field, const std::string& what) {
  return absl::InvalidArgumentError(Cat(field, ": ", what));
}

absl::Status CheckUtf8(const std::string& field, const std::string& text) {
  const auto bad = FirstInvalidUtf8(text);
  if (!bad.has_value()) return absl::OkStatus();
  return Bad(field, Cat("not valid UTF-8 at byte ", *bad));
}

// An id as the engine's type; `vocab` 0: unknown.
absl::StatusOr<int32_t> NarrowId(const std::string& field, int64_t id, int64_t vocab) {
  const int64_t limit = vocab > 0 ? vocab : int64_t{INT32_MAX};
  if (id >= 0 && id < limit) return static_cast<int32_t>(id);
  return Bad(field, vocab > 0
                        ? Cat("token id ", id, " is outside the vocabulary [0, ", vocab - 1, "]")
                        : Cat("token id ", id, " is outside [0, ", limit - 1, "]"));
}

absl::Status CheckSampling(const v1::SamplingParams& in, int64_t vocab) {
  SamplingParams out;
  if (in.has_temperature()) out.temperature = in.temperature();
  if (in.has_top_p()) out.top_p = in.top_p();
  if (in.has_top_k()) out.top_k = in.top_k();
  if (in.has_min_p()) out.min_p = in.min_p();
  if (in.has_presence_penalty()) out.presence_penalty = in.presence_penalty();
  if (in.has_frequency_penalty()) out.frequency_penalty = in.frequency_penalty();
  if (in.has_repetition_penalty()) out.repetition_penalty = in.repetition_penalty();
  out.logprobs = in.logprobs();
  out.top_logprobs = in.top_logprobs();
  out.prompt_logprobs = in.prompt_logprobs();
  for (const auto& [id, bias] : in.logit_bias()) {
    BATON_ASSIGN_OR_RETURN(const int32_t token, NarrowId("logit_bias", id, vocab));
    out.logit_bias.emplace_back(token, static_cast<float>(bias));
  }
  return ValidateSampling(out, {.vocab_size = vocab});
}

// `scoring`: nothing needs to be generated.
absl::Status CheckStop(const v1::StopConditions& in, bool scoring, int64_t default_max,
                       int64_t vocab) {
  StopParams out;
  out.max_tokens = in.has_max_tokens() ? in.max_tokens() : default_max;
  out.min_tokens = in.min_tokens();
  out.stop.assign(in.stop().begin(), in.stop().end());
  out.ignore_eos = in.ignore_eos();
  for (int i = 0; i < in.stop_token_ids_size(); ++i) {
    BATON_ASSIGN_OR_RETURN(const int32_t token,
                           NarrowId(Cat("stop_token_ids[", i, "]"), in.stop_token_ids(i), vocab));
    out.stop_token_ids.push_back(token);
  }
  BATON_RETURN_IF_ERROR(ValidateStop(out, {.vocab_size = vocab, .scoring = scoring}));
  for (int i = 0; i < in.stop_size(); ++i) {
    BATON_RETURN_IF_ERROR(CheckUtf8(Cat("stop[", i, "]"), in.stop(i)));
  }
  return absl::OkStatus();
}

absl::Status CheckPrompt(const v1::GenerateRequest& request) {
  switch (request.prompt_case()) {
    case v1::GenerateRequest::kText:
      if (request.text().empty()) return Bad("prompt", "text is empty");
      return CheckUtf8("prompt", request.text());
    case v1::GenerateRequest::kTokens:
      if (request.tokens().ids().empty()) return Bad("prompt", "tokens is empty");
      return absl::OkStatus();
    case v1::GenerateRequest::kChat:
      if (request.chat().messages().empty()) return Bad("messages", "must not be empty");
      return absl::OkStatus();  // the rest is checked by the model's template
    case v1::GenerateRequest::PROMPT_NOT_SET:
      break;
  }
  return Bad("prompt", "missing; set exactly one of text, chat, tokens");
}

ChatMessage ToChatMessage(const v1::ChatMessage& in) {
  ChatMessage out{in.role(), in.content()};
  for (const v1::ToolCall& call : in.tool_calls()) {
    out.tool_calls.push_back({call.id(), call.name(), call.arguments()});
  }
  out.tool_call_id = in.tool_call_id();
  if (in.has_reasoning_content()) out.reasoning = in.reasoning_content();
  return out;
}

absl::StatusOr<std::vector<int32_t>> TokenizeChat(const v1::GenerateRequest::Chat& in,
                                                  const Tokenizer& tokenizer,
                                                  const ChatTemplate& chat) {
  std::vector<ChatMessage> messages;
  messages.reserve(static_cast<size_t>(in.messages_size()));
  for (const v1::ChatMessage& message : in.messages()) messages.push_back(ToChatMessage(message));
  RenderOptions options;
  options.date = in.date_string();
  options.tools.assign(in.tools().begin(), in.tools().end());
  if (in.has_enable_thinking()) options.enable_thinking = in.enable_thinking();
  return EncodeChat(tokenizer, chat, messages, options);
}

}  // namespace

absl::Status CheckGenerateRequest(const v1::GenerateRequest& request) {
  BATON_RETURN_IF_ERROR(CheckPrompt(request));
  BATON_RETURN_IF_ERROR(CheckUtf8("model", request.model()));
  const std::string& strategy = request.strategy();
  constexpr const char* kStrategies[] = {"auto",  "oracle", "raw",      "q4",
                                         "reuse", "scd",    "selective"};
  if (!strategy.empty() && std::find(std::begin(kStrategies), std::end(kStrategies), strategy) ==
                               std::end(kStrategies)) {
    return Bad("strategy", Cat("'", strategy.substr(0, 40),
                               "' is unknown; allowed: ", absl::StrJoin(kStrategies, ", ")));
  }
  BATON_RETURN_IF_ERROR(CheckSampling(request.sampling(), 0));
  return CheckStop(request.stop(), request.sampling().prompt_logprobs(),
                   std::max<int64_t>(1, request.stop().min_tokens()), 0);
}

absl::StatusOr<std::vector<int32_t>> TokenizePrompt(const v1::GenerateRequest& request,
                                                    const v1::DecodeModel& model,
                                                    const Tokenizer& tokenizer,
                                                    const ChatTemplate* chat,
                                                    const PromptOptions& options) {
  std::vector<int32_t> tokens;
  if (request.has_tokens()) {
    tokens.reserve(static_cast<size_t>(request.tokens().ids_size()));
    for (int i = 0; i < request.tokens().ids_size(); ++i) {
      BATON_ASSIGN_OR_RETURN(
          const int32_t token,
          NarrowId(Cat("prompt[", i, "]"), request.tokens().ids(i), model.vocab_size()));
      tokens.push_back(token);
    }
    return tokens;
  }
  if (request.has_chat()) {
    if (chat == nullptr) {
      return Bad("messages", Cat("model '", model.name(),
                                 "' has no chat template; use a text prompt, or set chat_template "
                                 "in the decode node's configuration"));
    }
    BATON_ASSIGN_OR_RETURN(tokens, TokenizeChat(request.chat(), tokenizer, *chat));
  } else {
    const bool parse =
        request.has_parse_special() ? request.parse_special() : options.parse_special;
    BATON_ASSIGN_OR_RETURN(
        tokens, tokenizer.Encode(request.text(), {.parse_special = parse, .add_bos = true}));
  }
  if (tokens.empty()) return Bad("prompt", "has no tokens");
  return tokens;
}

absl::StatusOr<v1::DecodeRequest> MakeDecodeRequest(const v1::GenerateRequest& request,
                                                    const v1::DecodeModel& model,
                                                    const Tokenizer& tokenizer,
                                                    const std::vector<int32_t>& tokens,
                                                    const std::string& request_id,
                                                    const PromptOptions& options) {
  const int64_t context = model.max_context_tokens();
  const int64_t prompt = static_cast<int64_t>(tokens.size());
  const int64_t room = context - prompt;
  const bool has_max = request.stop().has_max_tokens();
  BATON_RETURN_IF_ERROR(CheckContext(prompt, has_max ? request.stop().max_tokens() : 1, context));
  BATON_RETURN_IF_ERROR(CheckSampling(request.sampling(), model.vocab_size()));
  BATON_RETURN_IF_ERROR(
      CheckStop(request.stop(), request.sampling().prompt_logprobs(), room, model.vocab_size()));
  if (request.has_shared_prefix_tokens() && request.shared_prefix_tokens() > prompt) {
    return Bad("shared_prefix_tokens", Cat(request.shared_prefix_tokens(),
                                           " is more than the prompt's ", prompt, " tokens"));
  }

  v1::DecodeRequest out;
  out.set_request_id(request_id);
  out.set_model(model.name());
  out.mutable_token_ids()->Assign(tokens.begin(), tokens.end());
  *out.mutable_sampling() = request.sampling();
  if (!out.sampling().has_seed()) out.mutable_sampling()->set_seed(RandomId64());
  *out.mutable_stop() = request.stop();
  out.mutable_stop()->set_max_tokens(has_max ? request.stop().max_tokens() : room);
  out.set_scope(options.scope);
  std::optional<int64_t> asked;
  if (request.has_shared_prefix_tokens()) {
    asked = request.shared_prefix_tokens();
    out.set_shared_prefix_tokens(request.shared_prefix_tokens());
  }
  const size_t shareable = static_cast<size_t>(ShareablePrefix(prompt, asked));
  const auto hashes = ChainHashes(absl::MakeConstSpan(tokens).first(shareable),
                                  ChainSeed(tokenizer.digest(), options.scope));
  for (const BlockHash& hash : hashes) out.add_block_hashes(hash.Hex());
  out.set_strategy(request.strategy());
  if (request.has_handoff_seam()) out.set_handoff_seam(request.handoff_seam());
  out.set_priority(request.priority());
  out.set_want_timing(request.want_timing());
  return out;
}

}  // namespace baton
