// Which KV tokens of a layer are kept, from their scores ([kv_heads, tokens], attention_scores.h).
//
// Results are positions per KV head, ascending. Equal scores: the lower position wins (in AdaKv the
// lower head first). A budget of at least the tokens keeps all. Pure and thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace baton {

using KeptPositions = std::vector<std::vector<std::int32_t>>;  // [kv_heads][kept]

KeptPositions SelectAll(std::int64_t kv_heads, std::int64_t tokens);

// The `budget` highest scores of each head: SnapKV and PyramidKV.
KeptPositions SelectTop(absl::Span<const float> scores, std::int64_t kv_heads, std::int64_t budget);

// H2O (arXiv 2306.14048): the last `recent` tokens and, of the others, the highest scores. `recent`
// is cut to the budget; the paper takes half of it.
KeptPositions SelectHeavyHitters(absl::Span<const float> scores, std::int64_t kv_heads,
                                 std::int64_t budget, std::int64_t recent);

// StreamingLLM (arXiv 2309.17453): the first `sinks` (cut to the budget) and the last tokens.
KeptPositions SelectStreaming(std::int64_t kv_heads, std::int64_t tokens, std::int64_t budget,
                              std::int64_t sinks = 4);

// Ada-KV (arXiv 2407.11550, algorithm 1): kv_heads * budget tokens over all heads by score, but
// floor(safeguard * budget) in each head first (at least one, if safeguard > 0).
KeptPositions SelectAdaKv(absl::Span<const float> scores, std::int64_t kv_heads,
                          std::int64_t budget, double safeguard = 0.2);

}  // namespace baton
