// K/V as 4-bit codes: keys with a scale per channel and group of rows, values with a scale per row
// (KIVI, arXiv 2402.02750, section 3: keys have outlier channels, values have not), asymmetric.
//
//   x' = q * d + m,  m = min x,  d = (max x - m) / 15,  q = floor((x - m) / d + 0.5) in [0, 15]
//
// with d and m rounded to fp16 after q was made: |x' - x| <= d / 2 + (15 d + |m|) 2^-11. A group is
// 32 rows, two pages, of one layer and KV head:
//
//   keys:   [head_dim][2] fp16 {d, m}, then [head_dim][16] bytes: byte j of a channel holds row j
//           in its low half and row j + 16 in its high half
//   values: [32][2] fp16 {d, m}, then [32][head_dim / 2] bytes: byte j of a row holds channel j in
//           its low half and channel j + head_dim / 2 in its high half
//
// Little-endian; scales beyond fp16's range become its largest number. 1.19 bytes of codes and
// scales for two values at head_dim 64. The newest kQ4ResidualRows rows of a prefix travel raw, as
// in the paper: the tokens that follow attend to them most.
#pragma once

#include <cstddef>

#include "kernels/kv_page.h"

namespace baton {

inline constexpr int kQ4GroupPages = 2;
inline constexpr int kQ4GroupRows = kQ4GroupPages * kPageRows;
inline constexpr int kQ4ResidualRows = 128;

constexpr std::size_t Q4KeyBytes(int head_dim) {
  return static_cast<std::size_t>(head_dim) * (4 + kQ4GroupRows / 2);
}
constexpr std::size_t Q4ValueBytes(int head_dim) {
  return static_cast<std::size_t>(kQ4GroupRows) * (4 + static_cast<std::size_t>(head_dim) / 2);
}

// Codes of two neighbouring pages. Rows below `first_row` (0..31) are not the receiver's business:
// they have no say in the keys' scales (the first tokens of a text have keys unlike all others) and
// decode to something. `keys` has Q4KeyBytes, `values` Q4ValueBytes.
void EncodeQ4(const KvPageLayout& layout, const std::byte* first, const std::byte* second,
              int first_row, std::byte* keys, std::byte* values);

// K and V of page `half` (0 or 1) of a group, as they lie in a page of the layout: payload_bytes()
// to `rows`, rounded to the layout's dtype (nearest even).
void DecodeQ4(const KvPageLayout& layout, const std::byte* keys, const std::byte* values, int half,
              std::byte* rows);

}  // namespace baton
