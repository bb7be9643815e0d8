#include "decode_node/ripple/attention_scores.h"

#include <algorithm>
#include <cassert>
#include <cmath>
#include <functional>

namespace baton {
namespace {

// The softmax of `row`'s first `visible` entries, in place; the others become 0.
void Softmax(absl::Span<float> row, std::int64_t visible) {
  const auto end = row.begin() + visible;
  const float most = *std::max_element(row.begin(), end);
  float sum = 0;
  for (auto it = row.begin(); it != end; ++it) {
    *it = std::exp(*it - most);
    sum += *it;
  }
  for (auto it = row.begin(); it != end; ++it) *it /= sum;
  std::fill(end, row.end(), 0.0F);
}

// out[i] of `in` over [i - kernel / 2, i + kernel / 2], cut to the input.
std::vector<float> Pool(const std::vector<float>& in, const SnapKvOptions& options) {
  const auto n = static_cast<std::int64_t>(in.size());
  std::vector<float> out(in.size());
  for (std::int64_t i = 0; i < n; ++i) {
    const auto begin = in.begin() + std::max<std::int64_t>(0, i - options.kernel / 2);
    const auto end = in.begin() + std::min(n, i + options.kernel / 2 + 1);
    float value = 0;
    if (options.pooling == Pooling::kMax) {
      value = *std::max_element(begin, end);
    } else {
      for (auto it = begin; it != end; ++it) value += *it;
      value /= static_cast<float>(options.kernel);
    }
    out[static_cast<std::size_t>(i)] = value;
  }
  return out;
}

// Sums of `head`'s first `columns` columns over its rows.
std::vector<float> ColumnSums(absl::Span<const float> probabilities, std::int64_t head,
                              std::int64_t rows, std::int64_t tokens, std::int64_t columns) {
  std::vector<float> sums(static_cast<std::size_t>(columns));
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* row = probabilities.data() + (head * rows + r) * tokens;
    for (std::int64_t t = 0; t < columns; ++t) sums[static_cast<std::size_t>(t)] += row[t];
  }
  return sums;
}

}  // namespace

std::vector<float> WindowAttention(const AttentionShape& shape, std::int64_t window,
                                   absl::Span<const float> queries, absl::Span<const float> keys,
                                   Executor& executor) {
  const std::int64_t n = shape.tokens;
  const std::int64_t d = shape.head_dim;
  assert(window >= 1 && window <= n && shape.heads % shape.kv_heads == 0);
  assert(static_cast<std::int64_t>(queries.size()) == shape.heads * window * d);
  assert(static_cast<std::int64_t>(keys.size()) == shape.kv_heads * n * d);
  std::vector<float> out(static_cast<std::size_t>(shape.heads * window * n));
  const float scale = 1 / std::sqrt(static_cast<float>(d));
  const std::int64_t group = shape.heads / shape.kv_heads;
  executor.ParallelFor(shape.heads * window, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      const std::int64_t visible = n - window + r % window + 1;
      const float* q = queries.data() + r * d;
      const float* k = keys.data() + r / window / group * n * d;
      float* row = out.data() + r * n;
      for (std::int64_t t = 0; t < visible; ++t, k += d) {
        float dot = 0;
        for (std::int64_t i = 0; i < d; ++i) dot += q[i] * k[i];
        row[t] = dot * scale;
      }
      Softmax({row, static_cast<std::size_t>(n)}, visible);
    }
  });
  return out;
}

std::vector<float> SnapKvScores(const AttentionShape& shape, std::int64_t window,
                                absl::Span<const float> probabilities, const SnapKvOptions& options,
                                Executor& executor) {
  const std::int64_t n = shape.tokens;
  const std::int64_t past = n - window;
  assert(past > 0 && options.kernel % 2 == 1);
  assert(static_cast<std::int64_t>(probabilities.size()) == shape.heads * window * n);
  std::vector<float> scores(static_cast<std::size_t>(shape.kv_heads * n));
  const std::int64_t group = shape.heads / shape.kv_heads;
  executor.ParallelFor(shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t h = begin; h < end; ++h) {
      float* out = scores.data() + h * n;
      for (std::int64_t g = h * group; g < (h + 1) * group; ++g) {
        std::vector<float> mean = ColumnSums(probabilities, g, window, n, past);
        for (float& v : mean) v /= static_cast<float>(window);
        const std::vector<float> pooled = Pool(mean, options);
        std::transform(pooled.begin(), pooled.end(), out, out, std::plus<>());
      }
      std::transform(out, out + past, out, [&](float v) { return v / static_cast<float>(group); });
    }
  });
  const float most = *std::max_element(scores.begin(), scores.end()) + 1;
  for (std::int64_t h = 0; h < shape.kv_heads; ++h) {
    std::fill_n(scores.data() + h * n + past, window, most);
  }
  return scores;
}

std::vector<float> AccumulatedScores(const AttentionShape& shape,
                                     absl::Span<const float> probabilities,
                                     Accumulation accumulation, Executor& executor) {
  const std::int64_t n = shape.tokens;
  assert(static_cast<std::int64_t>(probabilities.size()) == shape.heads * n * n);
  std::vector<float> scores(static_cast<std::size_t>(shape.kv_heads * n));
  const std::int64_t group = shape.heads / shape.kv_heads;
  executor.ParallelFor(shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t h = begin; h < end; ++h) {
      float* out = scores.data() + h * n;
      for (std::int64_t g = h * group; g < (h + 1) * group; ++g) {
        const std::vector<float> sums = ColumnSums(probabilities, g, n, n, n);
        for (std::int64_t t = 0; t < n; ++t) {
          const auto seen_by = static_cast<float>(accumulation == Accumulation::kMean ? n - t : 1);
          out[t] += sums[static_cast<std::size_t>(t)] / seen_by / static_cast<float>(group);
        }
      }
    }
  });
  return scores;
}

}  // namespace baton
