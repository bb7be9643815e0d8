// Keeps runs of neighbouring tokens together: chunks of equal length or sentences.
#pragma once

#include <cstdint>
#include <vector>

#include "decode_node/ripple/token_select.h"

namespace baton {

// First positions of chunks of `length` tokens: ChunkKV (arXiv 2502.00299) takes 20.
std::vector<std::int32_t> ChunkStarts(std::int64_t tokens, std::int64_t length = 20);

// ChunkKV: the `count` groups of the highest mean score summed over KV heads, the same for all
// heads. `starts` ascend from 0, each group ending where the next begins. Ties: the earlier group.
KeptPositions SelectGroups(absl::Span<const float> scores, std::int64_t kv_heads,
                           absl::Span<const std::int32_t> starts, std::int64_t count);

// Spends a token budget exactly, per KV head: groups by mean score while they fit whole, the first
// that does not fit is cut to its highest scores. With sentence starts this is SentenceKV's static
// selection.
KeptPositions SelectWithinGroups(absl::Span<const float> scores, std::int64_t kv_heads,
                                 absl::Span<const std::int32_t> starts, std::int64_t budget);

}  // namespace baton
