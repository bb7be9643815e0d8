// The bytes of a panel: 32 output features of a packed matrix, in the order in which products read
// them. Internal to the room.
//
//   fp32, fp16: [cols][32]
//   bf16:       [cols][16] 32-bit words, feature c in the low half and c + 16 in the high half,
//               so that one shift and one mask widen a whole vector.
//   quantised:  [ceil(cols / 32)] blocks of 32 inner elements each, see QuantLayout.
//
// Features that pad a panel are zeros, and so are the codes that pad its last block.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/hd.h"
#include "kernels/weight_format.h"

namespace baton {

inline constexpr int kPanelCols = 32;   // output features per panel
inline constexpr int kPanelBlock = 32;  // inner elements per block of a quantised panel

// One block of a quantised panel, arrays one after the other:
//   d      [32] fp16
//   m      [32] fp16, if has_m: the offset, or what the integer minima are multiples of
//   scale  [groups][32] int8 (Q6_K) or uint8, if has_scale: multiples of d
//   min    [32] uint8, if has_min: multiples of m
//   codes  [32][32] int8 (8 bits), or [4][32] words: the nibbles of a word are 8 inner elements,
//          the first in the lowest bits, so that one load of a vector serves 8 of them
//   high   [4][32] uint8 (1 bit) or uint16 (2 bits): the bits above the nibbles, in the same order
//
// A weight is scale * (q - zero) + offset: scale is d, or d times the integer scale; offset is m,
// or minus m times the integer minimum. q has 4 + high_bits bits.
struct QuantLayout {
  bool has_m = false;
  bool has_scale = false;
  bool has_min = false;
  int groups = 1;  // of inner elements with a scale of their own
  int code_bits = 4;
  int high_bits = 0;
  int zero = 0;

  BATON_HD constexpr std::size_t m() const { return 2 * kPanelCols; }
  BATON_HD constexpr std::size_t scale() const { return m() + (has_m ? 2 * kPanelCols : 0); }
  BATON_HD constexpr std::size_t min() const {
    return scale() + (has_scale ? groups * kPanelCols : 0);
  }
  BATON_HD constexpr std::size_t codes() const { return min() + (has_min ? kPanelCols : 0); }
  BATON_HD constexpr std::size_t high() const {
    return codes() + static_cast<std::size_t>(kPanelBlock * kPanelCols * code_bits / 8);
  }
  BATON_HD constexpr std::size_t bytes() const {
    return high() + static_cast<std::size_t>(kPanelBlock * kPanelCols * high_bits / 8);
  }
};

// Of a quantised format.
BATON_HD constexpr QuantLayout QuantLayoutOf(WeightFormat f) {
  QuantLayout l;
  l.has_m = f == WeightFormat::kQ4_1 || f == WeightFormat::kQ5_1 || f == WeightFormat::kQ4_K ||
            f == WeightFormat::kQ5_K;
  l.has_min = f == WeightFormat::kQ4_K || f == WeightFormat::kQ5_K;
  l.has_scale = l.has_min || f == WeightFormat::kQ6_K;
  l.groups = f == WeightFormat::kQ6_K ? 2 : 1;
  l.code_bits = f == WeightFormat::kQ8_0 ? 8 : 4;
  switch (f) {
    case WeightFormat::kQ4_0:
      l.zero = 8;
      break;
    case WeightFormat::kQ5_0:
      l.high_bits = 1;
      l.zero = 16;
      break;
    case WeightFormat::kQ5_1:
    case WeightFormat::kQ5_K:
      l.high_bits = 1;
      break;
    case WeightFormat::kQ6_K:
      l.high_bits = 2;
      l.zero = 32;
      break;
    default:
      break;
  }
  return l;
}

BATON_HD constexpr std::size_t PanelBytes(WeightFormat format, std::int64_t cols) {
  return static_cast<std::size_t>(PackedRowBytes(format, cols)) * kPanelCols;
}

// Bytes from the start of a panel to its inner element k; a multiple of 32 for quantised formats.
BATON_HD constexpr std::size_t PanelOffset(WeightFormat format, std::int64_t k) {
  return PanelBytes(format, k);
}

// Packs `rows` (1..32) rows of fp32 [rows, cols] into a panel, rounded to nearest even or
// quantised; the format is plain or CanQuantise.
void PackPanel(WeightFormat format, const float* w, int rows, std::int64_t cols, std::byte* panel);

// The same from rows as stored (StoredRowBytes each, any alignment), bit for bit.
void PackStoredPanel(WeightFormat format, const std::byte* w, int rows, std::int64_t cols,
                     std::byte* panel);

// Feature c of a panel as fp32 [cols].
void UnpackPanelRow(WeightFormat format, const std::byte* panel, int c, std::int64_t cols,
                    float* dst);

}  // namespace baton
