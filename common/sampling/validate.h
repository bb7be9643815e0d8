// Range checks of a request's numbers, the same on the router and on the nodes.
//
//   BATON_RETURN_IF_ERROR(ValidateSampling(params, {.vocab_size = 49152}));
//
// Every refusal is INVALID_ARGUMENT and names field, value and limit, as
// "temperature: -1 is outside [0, 100]". Pure and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "common/sampling/sampling_params.h"

namespace baton {

struct SamplingLimits {
  // Token ids must be below; 0: unknown, only negative ids are refused.
  std::int64_t vocab_size = 0;
  // max_tokens may be 0: the prompt is scored (prompt_logprobs) and nothing generated.
  bool scoring = false;
};

inline constexpr double kMaxTemperature = 100;
inline constexpr int kMaxTopK = 1 << 30;
inline constexpr double kMaxPenalty = 2;  // presence and frequency: [-2, 2]
inline constexpr double kMinRepetitionPenalty = 0.01;
inline constexpr double kMaxRepetitionPenalty = 10;
inline constexpr float kMaxLogitBias = 100;  // [-100, 100]
inline constexpr std::size_t kMaxLogitBiasEntries = 1024;
inline constexpr int kMaxTopLogprobs = 20;
inline constexpr std::size_t kMaxStopStrings = 16;
inline constexpr std::size_t kMaxStopStringBytes = 1024;
inline constexpr std::size_t kMaxStopTokenIds = 128;
inline constexpr std::int64_t kMaxMaxTokens = std::int64_t{1} << 30;

absl::Status ValidateSampling(const SamplingParams& params, const SamplingLimits& limits);

// max_tokens must be in [1, 2^30] (see SamplingLimits::scoring for 0); whether it fits the context
// is for whoever knows the prompt (CheckContext).
absl::Status ValidateStop(const StopParams& params, const SamplingLimits& limits);

// INVALID_ARGUMENT with the three numbers when prompt + max_tokens is over the context, or when the
// prompt leaves no room for a token (unless max_tokens is 0).
absl::Status CheckContext(std::int64_t prompt_tokens, std::int64_t max_tokens,
                          std::int64_t max_context);

}  // namespace baton
