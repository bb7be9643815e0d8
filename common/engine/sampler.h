// Chooses the next token from a row of logits.
//
// Order: logit_bias and forbidden tokens, penalties (repetition over prompt and output as in HF
// Transformers; presence and frequency over the output as OpenAI and vLLM define them),
// temperature, min_p, top_k, top_p. Log-probabilities are of the raw logits. Pure but for the
// scratch it is given; one scratch per thread.
#pragma once

#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "absl/status/statusor.h"
#include "common/sampling/sampling_params.h"

namespace baton {

// Which tokens a sequence has seen, for the penalties.
class TokenHistory {
 public:
  void AddPrompt(std::int32_t token) { counts_.try_emplace(token, 0); }
  void AddOutput(std::int32_t token) { ++counts_[token]; }
  // (token, times in the output); 0: in the prompt only.
  const std::unordered_map<std::int32_t, std::int32_t>& counts() const { return counts_; }

 private:
  std::unordered_map<std::int32_t, std::int32_t> counts_;
};

struct SampleRequest {
  std::span<const float> logits;  // [vocab], raw
  const SamplingParams* params = nullptr;
  std::uint64_t seed = 0;
  std::uint64_t index = 0;                  // of the token in the output, from 0
  const TokenHistory* history = nullptr;    // may be null when no penalty is set
  std::span<const std::int32_t> forbidden;  // can't be chosen
};

struct TokenLogprob {
  std::int32_t token = 0;
  float logprob = 0;
};

struct SampledToken {
  std::int32_t token = 0;
  // As TokenDelta::logprobs: the chosen one, then the top ones by falling probability (ties: lower
  // id first). Empty unless asked for.
  std::vector<TokenLogprob> logprobs;
};

struct SamplerScratch {
  std::vector<float> logits;
  std::vector<double> weights;
  std::vector<std::int32_t> ids;
};

// Log-probabilities of a token of which it is known that it follows, as SampledToken::logprobs.
// INTERNAL when the logits hold NaN or +infinity.
absl::StatusOr<std::vector<TokenLogprob>> ScoreToken(std::span<const float> logits,
                                                     std::int32_t token, int top,
                                                     SamplerScratch& scratch);

// INTERNAL when the logits hold NaN or +infinity, or nothing is left to choose from.
absl::StatusOr<SampledToken> SampleToken(const SampleRequest& request, SamplerScratch& scratch);

// True when the request needs a TokenHistory.
bool NeedsHistory(const SamplingParams& params);

}  // namespace baton
