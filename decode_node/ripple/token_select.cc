#include "decode_node/ripple/token_select.h"

#include <algorithm>
#include <cassert>
#include <numeric>

namespace baton {
namespace {

using Positions = std::vector<std::int32_t>;

Positions Range(std::int64_t begin, std::int64_t end) {
  Positions out(static_cast<std::size_t>(std::max<std::int64_t>(0, end - begin)));
  std::iota(out.begin(), out.end(), static_cast<std::int32_t>(begin));
  return out;
}

// The `count` highest of `candidates`, ascending.
Positions Top(absl::Span<const float> scores, Positions candidates, std::int64_t count) {
  const auto middle = candidates.begin() +
                      std::min<std::int64_t>(count, static_cast<std::int64_t>(candidates.size()));
  std::partial_sort(candidates.begin(), middle, candidates.end(),
                    [&](std::int32_t a, std::int32_t b) {
                      const float x = scores[static_cast<std::size_t>(a)];
                      const float y = scores[static_cast<std::size_t>(b)];
                      return x != y ? x > y : a < b;
                    });
  candidates.erase(middle, candidates.end());
  std::sort(candidates.begin(), candidates.end());
  return candidates;
}

std::int64_t Tokens(absl::Span<const float> scores, std::int64_t kv_heads) {
  assert(kv_heads > 0 && static_cast<std::int64_t>(scores.size()) % kv_heads == 0);
  return static_cast<std::int64_t>(scores.size()) / kv_heads;
}

absl::Span<const float> Head(absl::Span<const float> scores, std::int64_t tokens, std::int64_t h) {
  return scores.subspan(static_cast<std::size_t>(h * tokens), static_cast<std::size_t>(tokens));
}

}  // namespace

KeptPositions SelectAll(std::int64_t kv_heads, std::int64_t tokens) {
  return KeptPositions(static_cast<std::size_t>(kv_heads), Range(0, tokens));
}

KeptPositions SelectTop(absl::Span<const float> scores, std::int64_t kv_heads,
                        std::int64_t budget) {
  return SelectHeavyHitters(scores, kv_heads, budget, 0);
}

KeptPositions SelectHeavyHitters(absl::Span<const float> scores, std::int64_t kv_heads,
                                 std::int64_t budget, std::int64_t recent) {
  const std::int64_t n = Tokens(scores, kv_heads);
  budget = std::clamp<std::int64_t>(budget, 0, n);
  recent = std::clamp<std::int64_t>(recent, 0, budget);
  KeptPositions kept;
  for (std::int64_t h = 0; h < kv_heads; ++h) {
    kept.push_back(Top(Head(scores, n, h), Range(0, n - recent), budget - recent));
    const Positions last = Range(n - recent, n);
    kept.back().insert(kept.back().end(), last.begin(), last.end());
  }
  return kept;
}

KeptPositions SelectStreaming(std::int64_t kv_heads, std::int64_t tokens, std::int64_t budget,
                              std::int64_t sinks) {
  budget = std::clamp<std::int64_t>(budget, 0, tokens);
  sinks = std::clamp<std::int64_t>(sinks, 0, budget);
  Positions kept = Range(0, sinks);
  const Positions last = Range(tokens - (budget - sinks), tokens);
  kept.insert(kept.end(), last.begin(), last.end());
  return KeptPositions(static_cast<std::size_t>(kv_heads), kept);
}

KeptPositions SelectAdaKv(absl::Span<const float> scores, std::int64_t kv_heads,
                          std::int64_t budget, double safeguard) {
  const std::int64_t n = Tokens(scores, kv_heads);
  budget = std::clamp<std::int64_t>(budget, 0, n);
  auto safe = static_cast<std::int64_t>(static_cast<double>(budget) * safeguard);
  if (safeguard > 0) safe = std::max<std::int64_t>(safe, 1);
  safe = std::min(safe, budget);
  KeptPositions kept = SelectTop(scores, kv_heads, safe);
  Positions others;  // h * n + position
  for (std::int64_t h = 0; h < kv_heads; ++h) {
    const Positions& held = kept[static_cast<std::size_t>(h)];
    for (std::int64_t t = 0; t < n; ++t) {
      if (!std::binary_search(held.begin(), held.end(), static_cast<std::int32_t>(t))) {
        others.push_back(static_cast<std::int32_t>(h * n + t));
      }
    }
  }
  const Positions best = Top(scores, std::move(others), kv_heads * (budget - safe));
  for (const std::int32_t flat : best) {
    kept[static_cast<std::size_t>(flat / n)].push_back(static_cast<std::int32_t>(flat % n));
  }
  for (Positions& head : kept) std::sort(head.begin(), head.end());
  return kept;
}

}  // namespace baton
