// What attention asks for keys and values.
//
// A view is asked *after* q exists: a full cache ignores q, a tiered or compressed memory may
// choose by it. The answer may have several segments per KV head, with other lengths in each
// layer and head.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/attention.h"

namespace baton {

// New rows of one layer. k is rotated; both are [rows, kv_heads * head_dim] fp32.
struct KvRows {
  const float* k = nullptr;
  std::int64_t ldk = 0;
  const float* v = nullptr;
  std::int64_t ldv = 0;
  std::span<const std::int32_t> positions;  // [rows]
};

// Queries of one layer, rotated: [rows, q_heads * head_dim] fp32.
struct QueryBlock {
  const float* q = nullptr;
  std::int64_t ldq = 0;
  std::span<const std::int32_t> positions;  // [rows]
};

// Segments of head h: segments[offsets[h] .. offsets[h + 1]).
struct LayerSegments {
  std::vector<KvSegment> segments;
  std::vector<std::int32_t> offsets;  // [kv_heads + 1]
};

class KvView {
 public:
  virtual ~KvView() = default;
  // Layout of every page the view answers with; the same for all views of a batch.
  virtual const KvPageLayout& layout() const = 0;
  // Stores the new rows of `layer`. Capacity was reserved by the owner: cannot fail.
  virtual void Append(int layer, const KvRows& rows) = 0;
  // The answer stays valid until the next call for this view.
  virtual const LayerSegments& Select(int layer, const QueryBlock& q) = 0;
};

}  // namespace baton
