#include "decode_node/ripple/quest.h"

#include <algorithm>
#include <cassert>

#include "decode_node/ripple/token_select.h"

namespace baton {

QuestPages SummarisePages(absl::Span<const float> keys, std::int64_t head_dim,
                          std::int64_t page_tokens) {
  assert(head_dim > 0 && page_tokens > 0);
  const std::int64_t tokens = static_cast<std::int64_t>(keys.size()) / head_dim;
  QuestPages pages{head_dim, {}, {}};
  for (std::int64_t begin = 0; begin < tokens; begin += page_tokens) {
    const std::int64_t end = std::min(tokens, begin + page_tokens);
    for (std::int64_t i = 0; i < head_dim; ++i) {
      float low = keys[static_cast<std::size_t>(begin * head_dim + i)];
      float high = low;
      for (std::int64_t t = begin + 1; t < end; ++t) {
        const float k = keys[static_cast<std::size_t>(t * head_dim + i)];
        low = std::min(low, k);
        high = std::max(high, k);
      }
      pages.low.push_back(low);
      pages.high.push_back(high);
    }
  }
  return pages;
}

std::vector<float> PageBounds(const QuestPages& pages, absl::Span<const float> query) {
  const auto d = static_cast<std::size_t>(pages.head_dim);
  assert(query.size() == d);
  std::vector<float> bounds(pages.low.size() / d);
  for (std::size_t p = 0; p < bounds.size(); ++p) {
    for (std::size_t i = 0; i < d; ++i) {
      bounds[p] += std::max(query[i] * pages.low[p * d + i], query[i] * pages.high[p * d + i]);
    }
  }
  return bounds;
}

std::vector<std::int32_t> SelectPages(const QuestPages& pages, absl::Span<const float> queries,
                                      std::int64_t count) {
  const auto d = static_cast<std::size_t>(pages.head_dim);
  assert(!queries.empty() && queries.size() % d == 0);
  const std::size_t group = queries.size() / d;
  std::vector<float> mean(pages.low.size() / d);
  for (std::size_t g = 0; g < group; ++g) {
    const std::vector<float> bounds = PageBounds(pages, queries.subspan(g * d, d));
    for (std::size_t p = 0; p < mean.size(); ++p) {
      mean[p] += bounds[p] / static_cast<float>(group);
    }
  }
  return SelectTop(mean, 1, count).front();
}

}  // namespace baton
