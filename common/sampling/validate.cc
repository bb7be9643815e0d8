#include "common/sampling/validate.h"

#include <cmath>
#include <string>
#include <string_view>

#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace baton {
namespace {

template <typename T>
absl::Status Outside(std::string_view field, T value, T low, T high) {
  return absl::InvalidArgumentError(Cat(field, ": ", value, " is outside [", low, ", ", high, "]"));
}

// NaN is in no range.
template <typename T>
absl::Status CheckRange(std::string_view field, T value, T low, T high) {
  return value >= low && value <= high ? absl::OkStatus() : Outside(field, value, low, high);
}

absl::Status CheckCount(std::string_view field, std::size_t count, std::size_t limit) {
  if (count <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      Cat(field, ": ", count, " entries, at most ", limit, " are allowed"));
}

absl::Status CheckTokenId(std::string_view field, std::size_t index, std::int32_t id,
                          const SamplingLimits& limits) {
  if (id >= 0 && (limits.vocab_size == 0 || id < limits.vocab_size)) return absl::OkStatus();
  if (limits.vocab_size == 0) {
    return absl::InvalidArgumentError(Cat(field, "[", index, "]: token id ", id, " is negative"));
  }
  return absl::InvalidArgumentError(Cat(field, "[", index, "]: token id ", id,
                                        " is outside the vocabulary [0, ", limits.vocab_size - 1,
                                        "]"));
}

}  // namespace

absl::Status ValidateSampling(const SamplingParams& params, const SamplingLimits& limits) {
  BATON_RETURN_IF_ERROR(CheckRange("temperature", params.temperature, 0.0, kMaxTemperature));
  if (!(params.top_p > 0 && params.top_p <= 1)) {
    return absl::InvalidArgumentError(Cat("top_p: ", params.top_p, " is outside (0, 1]"));
  }
  BATON_RETURN_IF_ERROR(CheckRange("top_k", params.top_k, -1, kMaxTopK));
  BATON_RETURN_IF_ERROR(CheckRange("min_p", params.min_p, 0.0, 1.0));
  BATON_RETURN_IF_ERROR(
      CheckRange("presence_penalty", params.presence_penalty, -kMaxPenalty, kMaxPenalty));
  BATON_RETURN_IF_ERROR(
      CheckRange("frequency_penalty", params.frequency_penalty, -kMaxPenalty, kMaxPenalty));
  BATON_RETURN_IF_ERROR(CheckRange("repetition_penalty", params.repetition_penalty,
                                   kMinRepetitionPenalty, kMaxRepetitionPenalty));
  BATON_RETURN_IF_ERROR(CheckRange("top_logprobs", params.top_logprobs, 0, kMaxTopLogprobs));
  if (params.top_logprobs > 0 && !params.logprobs) {
    return absl::InvalidArgumentError(
        Cat("top_logprobs: ", params.top_logprobs, " needs logprobs to be true"));
  }
  if (params.prompt_logprobs && !params.logprobs) {
    return absl::InvalidArgumentError("prompt_logprobs: needs logprobs to be true");
  }
  BATON_RETURN_IF_ERROR(CheckCount("logit_bias", params.logit_bias.size(), kMaxLogitBiasEntries));
  for (std::size_t i = 0; i < params.logit_bias.size(); ++i) {
    const auto& [id, bias] = params.logit_bias[i];
    BATON_RETURN_IF_ERROR(CheckTokenId("logit_bias", i, id, limits));
    BATON_RETURN_IF_ERROR(CheckRange(Cat("logit_bias[", i, "] (token ", id, ")"), bias,
                                     -kMaxLogitBias, kMaxLogitBias));
  }
  return absl::OkStatus();
}

absl::Status ValidateStop(const StopParams& params, const SamplingLimits& limits) {
  if (params.max_tokens == 0 && !limits.scoring) {
    return absl::InvalidArgumentError(Cat("max_tokens: 0 is outside [1, ", kMaxMaxTokens,
                                          "]; 0 needs the prompt's log-probabilities "
                                          "(prompt_logprobs, or echo with logprobs)"));
  }
  BATON_RETURN_IF_ERROR(CheckRange("max_tokens", params.max_tokens,
                                   std::int64_t{limits.scoring ? 0 : 1}, kMaxMaxTokens));
  BATON_RETURN_IF_ERROR(
      CheckRange("min_tokens", params.min_tokens, std::int64_t{0}, params.max_tokens));
  BATON_RETURN_IF_ERROR(CheckCount("stop", params.stop.size(), kMaxStopStrings));
  for (std::size_t i = 0; i < params.stop.size(); ++i) {
    const std::size_t bytes = params.stop[i].size();
    if (bytes == 0) return absl::InvalidArgumentError(Cat("stop[", i, "] is empty"));
    if (bytes > kMaxStopStringBytes) {
      return absl::InvalidArgumentError(
          Cat("stop[", i, "]: ", bytes, " bytes, at most ", kMaxStopStringBytes, " are allowed"));
    }
  }
  BATON_RETURN_IF_ERROR(
      CheckCount("stop_token_ids", params.stop_token_ids.size(), kMaxStopTokenIds));
  for (std::size_t i = 0; i < params.stop_token_ids.size(); ++i) {
    BATON_RETURN_IF_ERROR(CheckTokenId("stop_token_ids", i, params.stop_token_ids[i], limits));
  }
  return absl::OkStatus();
}

absl::Status CheckContext(std::int64_t prompt_tokens, std::int64_t max_tokens,
                          std::int64_t max_context) {
  if (prompt_tokens > max_context || (prompt_tokens == max_context && max_tokens != 0)) {
    return absl::InvalidArgumentError(Cat("prompt: ", prompt_tokens,
                                          " tokens leave no room in the context of ", max_context,
                                          " tokens (max_tokens ", max_tokens, ")"));
  }
  if (max_tokens > max_context - prompt_tokens) {
    return absl::InvalidArgumentError(Cat("max_tokens: the prompt's ", prompt_tokens,
                                          " tokens + max_tokens ", max_tokens,
                                          " are over the context of ", max_context, " tokens"));
  }
  return absl::OkStatus();
}

}  // namespace baton
