#include "kernels/panel.h"

#include <algorithm>
#include <cstring>

#include "kernels/convert_math.h"
#include "kernels/quant_blocks.h"
#include "kernels/quantize.h"

namespace baton {
namespace {

// Index of feature c of one k of a bf16 panel, in 16-bit units.
constexpr int Bf16Slot(int c) { return c < 16 ? 2 * c : 2 * (c - 16) + 1; }

template <typename T>
T Read(const std::byte* src) {
  T value;
  std::memcpy(&value, src, sizeof(T));
  return value;
}

template <typename T>
void Write(std::byte* dst, T value) {
  std::memcpy(dst, &value, sizeof(T));
}

// What a stored format says about 32 neighbours of one row.
struct StoredBlock {
  std::uint16_t d = 0;         // fp16
  std::uint16_t m = 0;         // fp16
  std::uint8_t scale[2] = {};  // of each group
  std::uint8_t min = 0;
  std::uint8_t q[kPanelBlock] = {};
};

void ReadNibbles(const std::uint8_t* qs, std::uint8_t* q) {
  for (int i = 0; i < kQuantBlock / 2; ++i) {
    q[i] = qs[i] & 15;
    q[i + kQuantBlock / 2] = qs[i] >> 4;
  }
}

void ReadFifthBits(const std::uint8_t* qh, std::uint8_t* q) {
  for (int i = 0; i < kQuantBlock; ++i) {
    q[i] = static_cast<std::uint8_t>(q[i] | (qh[i / 8] >> (i % 8) & 1) << 4);
  }
}

// Group g of a Q4_K or Q5_K block, without fifth bits.
template <typename Block>
void ReadSuperGroup(const Block& b, int g, StoredBlock& out) {
  const std::uint8_t* s = b.scales;
  out.d = b.d;
  out.m = b.dmin;
  out.scale[0] =
      static_cast<std::uint8_t>(g < 4 ? s[g] & 63 : (s[g + 4] & 15) | (s[g - 4] >> 6) << 4);
  out.min = static_cast<std::uint8_t>(g < 4 ? s[g + 4] & 63 : s[g + 4] >> 4 | (s[g] >> 6) << 4);
  const std::uint8_t* qs = b.qs + g / 2 * kPanelBlock;
  for (int i = 0; i < kPanelBlock; ++i) out.q[i] = qs[i] >> (g % 2 * 4) & 15;
}

void ReadQ6Group(const BlockQ6_K& b, int g, StoredBlock& out) {
  out.d = b.d;
  for (int i = 0; i < 2; ++i) out.scale[i] = static_cast<std::uint8_t>(b.scales[2 * g + i]);
  const int half = g / 4, j = g % 4;
  for (int i = 0; i < kPanelBlock; ++i) {
    const int low = b.ql[64 * half + i + 32 * (j % 2)] >> (j / 2 * 4) & 15;
    const int high = b.qh[32 * half + i] >> (2 * j) & 3;
    out.q[i] = static_cast<std::uint8_t>(low | high << 4);
  }
}

// Elements [32 i, 32 i + 32) of a stored row.
StoredBlock ReadStored(WeightFormat format, const std::byte* row, std::int64_t i) {
  const std::int64_t per = StoredBlockElements(format) / kPanelBlock;
  const std::byte* src = row + i / per * StoredBlockBytes(format);
  const int g = static_cast<int>(i % per);
  StoredBlock out;
  switch (format) {
    case WeightFormat::kQ8_0: {
      const auto b = Read<BlockQ8_0>(src);
      out.d = b.d;
      std::memcpy(out.q, b.qs, sizeof(out.q));
      break;
    }
    case WeightFormat::kQ4_0: {
      const auto b = Read<BlockQ4_0>(src);
      out.d = b.d;
      ReadNibbles(b.qs, out.q);
      break;
    }
    case WeightFormat::kQ4_1: {
      const auto b = Read<BlockQ4_1>(src);
      out.d = b.d;
      out.m = b.m;
      ReadNibbles(b.qs, out.q);
      break;
    }
    case WeightFormat::kQ5_0: {
      const auto b = Read<BlockQ5_0>(src);
      out.d = b.d;
      ReadNibbles(b.qs, out.q);
      ReadFifthBits(b.qh, out.q);
      break;
    }
    case WeightFormat::kQ5_1: {
      const auto b = Read<BlockQ5_1>(src);
      out.d = b.d;
      out.m = b.m;
      ReadNibbles(b.qs, out.q);
      ReadFifthBits(b.qh, out.q);
      break;
    }
    case WeightFormat::kQ4_K:
      ReadSuperGroup(Read<BlockQ4_K>(src), g, out);
      break;
    case WeightFormat::kQ5_K: {
      const auto b = Read<BlockQ5_K>(src);
      ReadSuperGroup(b, g, out);
      for (int k = 0; k < kPanelBlock; ++k) {
        out.q[k] = static_cast<std::uint8_t>(out.q[k] | (b.qh[k] >> g & 1) << 4);
      }
      break;
    }
    case WeightFormat::kQ6_K:
      ReadQ6Group(Read<BlockQ6_K>(src), g, out);
      break;
    default:
      break;
  }
  return out;
}

// Feature c of a panel's block.
void PlaceBlock(const QuantLayout& l, const StoredBlock& b, int c, std::byte* block) {
  Write(block + 2 * c, b.d);
  if (l.has_m) Write(block + l.m() + 2 * c, b.m);
  if (l.has_scale) {
    for (int g = 0; g < l.groups; ++g) Write(block + l.scale() + g * kPanelCols + c, b.scale[g]);
  }
  if (l.has_min) Write(block + l.min() + c, b.min);
  if (l.code_bits == 8) {
    for (int k = 0; k < kPanelBlock; ++k) Write(block + l.codes() + k * kPanelCols + c, b.q[k]);
    return;
  }
  for (int octet = 0; octet < kPanelBlock / 8; ++octet) {
    std::uint32_t nibbles = 0, high = 0;
    for (int j = 0; j < 8; ++j) {
      const std::uint32_t q = b.q[8 * octet + j];
      nibbles |= (q & 15) << (4 * j);
      high |= (q >> 4) << (l.high_bits * j);
    }
    const int at = octet * kPanelCols + c;
    Write(block + l.codes() + 4 * at, nibbles);
    if (l.high_bits == 1) Write(block + l.high() + at, static_cast<std::uint8_t>(high));
    if (l.high_bits == 2) Write(block + l.high() + 2 * at, static_cast<std::uint16_t>(high));
  }
}

// Inverse of PlaceBlock for one inner element.
int CodeAt(const QuantLayout& l, const std::byte* block, int c, int k) {
  if (l.code_bits == 8) return Read<std::int8_t>(block + l.codes() + k * kPanelCols + c);
  const int at = k / 8 * kPanelCols + c, j = k % 8;
  unsigned q = Read<std::uint32_t>(block + l.codes() + 4 * at) >> (4 * j) & 15;
  if (l.high_bits == 1) q |= (Read<std::uint8_t>(block + l.high() + at) >> j & 1u) << 4;
  if (l.high_bits == 2) q |= (Read<std::uint16_t>(block + l.high() + 2 * at) >> (2 * j) & 3u) << 4;
  return static_cast<int>(q) - l.zero;
}

// In the order and rounding of common/weights/dequantize.h.
void UnpackQuantRow(WeightFormat format, const std::byte* panel, int c, std::int64_t cols,
                    float* dst) {
  const QuantLayout l = QuantLayoutOf(format);
  const bool is_signed = format == WeightFormat::kQ6_K;
  for (std::int64_t k = 0; k < cols; ++k) {
    const std::byte* block = panel + static_cast<std::size_t>(k / kPanelBlock) * l.bytes();
    const int in_block = static_cast<int>(k % kPanelBlock);
    float scale = HalfToFloat(Read<std::uint16_t>(block + 2 * c));
    float m = l.has_m ? HalfToFloat(Read<std::uint16_t>(block + l.m() + 2 * c)) : 0.0f;
    if (l.has_scale) {
      const int group = in_block * l.groups / kPanelBlock;
      const auto s = Read<std::uint8_t>(block + l.scale() + group * kPanelCols + c);
      scale *= static_cast<float>(is_signed ? static_cast<std::int8_t>(s) : s);
    }
    if (l.has_min) m *= -static_cast<float>(Read<std::uint8_t>(block + l.min() + c));
    const float product = scale * static_cast<float>(CodeAt(l, block, c, in_block));
    dst[k] = l.has_m ? product + m : product;
  }
}

// One row of plain values, read by `get(k)` as the panel's element type.
template <typename T, typename Slot, typename Get>
void PackPlain(int rows, std::int64_t cols, const Slot& slot, const Get& get, std::byte* panel) {
  T* dst = reinterpret_cast<T*>(panel);
  constexpr std::int64_t kBlock = 16;  // one cache line of each row at a time
  for (std::int64_t k0 = 0; k0 < cols; k0 += kBlock) {
    const std::int64_t k1 = std::min(cols, k0 + kBlock);
    for (int c = 0; c < rows; ++c) {
      for (std::int64_t k = k0; k < k1; ++k) dst[k * kPanelCols + slot(c)] = get(c * cols + k);
    }
  }
}

constexpr int SameSlot(int c) { return c; }

}  // namespace

void PackPanel(WeightFormat format, const float* w, int rows, std::int64_t cols, std::byte* panel) {
  if (rows < kPanelCols) std::memset(panel, 0, PanelBytes(format, cols));
  switch (format) {
    case WeightFormat::kF32:
      return PackPlain<float>(
          rows, cols, SameSlot, [&](std::int64_t i) { return w[i]; }, panel);
    case WeightFormat::kBF16:
      return PackPlain<std::uint16_t>(
          rows, cols, Bf16Slot, [&](std::int64_t i) { return FloatToBf16(w[i]); }, panel);
    case WeightFormat::kF16:
      return PackPlain<std::uint16_t>(
          rows, cols, SameSlot, [&](std::int64_t i) { return FloatToHalf(w[i]); }, panel);
    default:
      break;
  }
  const QuantLayout l = QuantLayoutOf(format);
  for (int c = 0; c < rows; ++c) {
    std::byte* block = panel;
    for (std::int64_t k = 0; k < cols; k += kPanelBlock, block += l.bytes()) {
      const int n = static_cast<int>(std::min<std::int64_t>(kPanelBlock, cols - k));
      const float* x = w + c * cols + k;
      std::byte stored[sizeof(BlockQ8_0)];
      if (format == WeightFormat::kQ8_0) {
        Write(stored, QuantizeInt8(x, n));
      } else {
        Write(stored, QuantizeInt4(x, n));
      }
      PlaceBlock(l, ReadStored(format, stored, 0), c, block);
    }
  }
}

void PackStoredPanel(WeightFormat format, const std::byte* w, int rows, std::int64_t cols,
                     std::byte* panel) {
  if (rows < kPanelCols) std::memset(panel, 0, PanelBytes(format, cols));
  const auto half = [&](std::int64_t i) { return Read<std::uint16_t>(w + 2 * i); };
  switch (format) {
    case WeightFormat::kF32:
      return PackPlain<float>(
          rows, cols, SameSlot, [&](std::int64_t i) { return Read<float>(w + 4 * i); }, panel);
    case WeightFormat::kBF16:
      return PackPlain<std::uint16_t>(rows, cols, Bf16Slot, half, panel);
    case WeightFormat::kF16:
      return PackPlain<std::uint16_t>(rows, cols, SameSlot, half, panel);
    default:
      break;
  }
  const QuantLayout l = QuantLayoutOf(format);
  const std::int64_t row_bytes = StoredRowBytes(format, cols);
  std::byte* block = panel;
  for (std::int64_t i = 0; i < cols / kPanelBlock; ++i, block += l.bytes()) {
    for (int c = 0; c < rows; ++c) {
      PlaceBlock(l, ReadStored(format, w + c * row_bytes, i), c, block);
    }
  }
}

void UnpackPanelRow(WeightFormat format, const std::byte* panel, int c, std::int64_t cols,
                    float* dst) {
  if (IsQuantised(format)) return UnpackQuantRow(format, panel, c, cols, dst);
  const float* f32 = reinterpret_cast<const float*>(panel);
  const std::uint16_t* h = reinterpret_cast<const std::uint16_t*>(panel);
  for (std::int64_t k = 0; k < cols; ++k) {
    switch (format) {
      case WeightFormat::kF32:
        dst[k] = f32[k * kPanelCols + c];
        break;
      case WeightFormat::kBF16:
        dst[k] = Bf16ToFloat(h[k * kPanelCols + Bf16Slot(c)]);
        break;
      default:
        dst[k] = HalfToFloat(h[k * kPanelCols + c]);
        break;
    }
  }
}

}  // namespace baton
