// Scores of a layer's KV tokens from the attention they received: what the token selectors rank.
//
//   const std::vector<float> p = WindowAttention(shape, 32, queries, keys, executor);
//   const std::vector<float> scores = SnapKvScores(shape, 32, p, {}, executor);
//   const KeptPositions kept = SelectTop(scores, shape.kv_heads, budget);   // token_select.h
//
// Sizes are the caller's promise (asserted). fp32; the same bits for any number of threads.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/executor.h"

namespace baton {

// heads is a multiple of kv_heads; query head h reads KV head h / (heads / kv_heads).
struct AttentionShape {
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  std::int64_t tokens = 0;
  std::int64_t head_dim = 0;
};

// softmax(q k^T / sqrt(head_dim)) of the last `window` queries, causal, max-subtracted.
// queries [heads, window, head_dim] and keys [kv_heads, tokens, head_dim], both after RoPE;
// 1 <= window <= tokens. Returns [heads, window, tokens], zero where the mask is.
std::vector<float> WindowAttention(const AttentionShape& shape, std::int64_t window,
                                   absl::Span<const float> queries, absl::Span<const float> keys,
                                   Executor& executor);

enum class Pooling { kAverage, kMax };

struct SnapKvOptions {
  std::int64_t kernel = 5;  // odd
  Pooling pooling = Pooling::kAverage;
};

// SnapKV (arXiv 2404.14469, section 4): attention of the window on each earlier token, averaged
// over the window, pooled along the tokens (zero padding counts in the average), averaged over the
// query group. The window's own tokens get the largest score of all heads + 1, so that they rank
// first. `probabilities` from WindowAttention; window < tokens. Returns [kv_heads, tokens].
std::vector<float> SnapKvScores(const AttentionShape& shape, std::int64_t window,
                                absl::Span<const float> probabilities, const SnapKvOptions& options,
                                Executor& executor);

// kSum is H2O's (arXiv 2306.14048, section 4): the sum over queries. kMean divides it by the
// number of queries that see the token, so that early ones have no head start.
enum class Accumulation { kSum, kMean };

// `probabilities` [heads, tokens, tokens]: WindowAttention with window == tokens; averaged over the
// query group. Returns [kv_heads, tokens].
std::vector<float> AccumulatedScores(const AttentionShape& shape,
                                     absl::Span<const float> probabilities,
                                     Accumulation accumulation, Executor& executor);

}  // namespace baton
