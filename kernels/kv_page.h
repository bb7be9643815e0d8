// The byte layout of one KV page: one layer x one KV head x 16 token rows.
//
//   offset 0              int32 positions[16]          absolute position of each row
//   k_offset()            K, transposed: [head_dim][16]   (rotated keys; 16 rows = one vector)
//   v_offset()            V, row major:  [16][head_dim]
//
// K is stored transposed, so that a dot product of one query against 16 keys runs over whole
// vectors without a shuffle. Which rows are valid is the table's business, not the page's.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"
#include "kernels/hd.h"

namespace baton {

inline constexpr int kPageRows = 16;
// Attention sinks: the first tokens of a text, whose keys are unlike all others. A consumer
// computes them itself; nothing travels for them.
inline constexpr int kSinkTokens = 4;

struct KvPageLayout {
  int head_dim = 0;  // multiple of 8, at most 256
  DType dtype = DType::kF32;

  BATON_HD constexpr std::size_t k_offset() const { return 64; }
  BATON_HD constexpr std::size_t k_bytes() const {
    return static_cast<std::size_t>(kPageRows) * head_dim * DTypeSize(dtype);
  }
  BATON_HD constexpr std::size_t v_offset() const { return k_offset() + k_bytes(); }
  BATON_HD constexpr std::size_t v_bytes() const { return k_bytes(); }
  // Bytes of K and V together: what travels, `v_offset()` follows K without a gap.
  BATON_HD constexpr std::size_t payload_bytes() const { return 2 * k_bytes(); }
  // Multiple of 64, so that pages in one slab stay aligned.
  BATON_HD constexpr std::size_t page_bytes() const {
    return (v_offset() + v_bytes() + 63) / 64 * 64;
  }

  constexpr bool operator==(const KvPageLayout& o) const {
    return head_dim == o.head_dim && dtype == o.dtype;
  }
};

BATON_HD std::int32_t* PagePositions(std::byte* page) {
  return reinterpret_cast<std::int32_t*>(page);
}
BATON_HD const std::int32_t* PagePositions(const std::byte* page) {
  return reinterpret_cast<const std::int32_t*>(page);
}

}  // namespace baton
