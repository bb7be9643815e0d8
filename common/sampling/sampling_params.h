// How a request wants its tokens chosen and when it wants to stop. Plain data that the router, the
// nodes and the engine share; validate.h checks it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace baton {

// Order of application: logit_bias, penalties (repetition over prompt and output; presence and
// frequency over the output), temperature, min_p, top_k, top_p.
struct SamplingParams {
  double temperature = 1.0;  // 0: greedy, ties to the lowest id
  double top_p = 1.0;        // 1: off
  int top_k = 0;             // 0 and -1: off; more than the vocabulary: off
  double min_p = 0.0;        // 0: off; share of the most likely token's probability
  double presence_penalty = 0.0;
  double frequency_penalty = 0.0;
  double repetition_penalty = 1.0;
  std::vector<std::pair<std::int32_t, float>> logit_bias;  // (token id, added to its logit)
  std::optional<std::uint64_t> seed;                       // absent: a random one is drawn
  // Log-probabilities of the model's own distribution: log-softmax of the raw logits, before bias,
  // penalties and temperature.
  bool logprobs = false;
  int top_logprobs = 0;
  bool prompt_logprobs = false;  // of the prompt's tokens, too; needs logprobs
};

struct StopParams {
  // >= 1 for generation; counts resumed tokens. 0: only the prompt's log-probabilities are wanted.
  std::int64_t max_tokens = 0;
  // End tokens (eos, stop_token_ids) can't be chosen and stop strings are not looked for before
  // this many tokens.
  std::int64_t min_tokens = 0;
  std::vector<std::string> stop;
  std::vector<std::int32_t> stop_token_ids;
  bool ignore_eos = false;
};

}  // namespace baton
