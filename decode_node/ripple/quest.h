// Quest (arXiv 2406.10774): keeps all KV and reads, at each decode step, only the pages whose keys
// may score high for the step's query.
//
//   const QuestPages pages = SummarisePages(keys, head_dim);          // one KV head
//   const auto read = SelectPages(pages, queries_of_the_group, 64);   // page numbers, ascending
//
// Pure and thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace baton {

struct QuestPages {
  std::int64_t head_dim = 0;
  std::vector<float> low;   // [pages, head_dim]: the smallest of each channel in the page
  std::vector<float> high;  // [pages, head_dim]
};

// `keys` [tokens, head_dim] of one KV head, after RoPE; the last page may be short.
QuestPages SummarisePages(absl::Span<const float> keys, std::int64_t head_dim,
                          std::int64_t page_tokens = 16);

// Per page sum_i max(q_i low_i, q_i high_i): no key of the page has a larger q k. `query`
// [head_dim].
std::vector<float> PageBounds(const QuestPages& pages, absl::Span<const float> query);

// The `count` pages of the highest bound, averaged over the query group ([group, head_dim]);
// ascending, ties to the lower page, all pages if there are no more than `count`.
std::vector<std::int32_t> SelectPages(const QuestPages& pages, absl::Span<const float> queries,
                                      std::int64_t count);

}  // namespace baton
