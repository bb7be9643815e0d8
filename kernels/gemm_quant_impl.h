// Matrix products over quantised panels, compiled once per instruction set. Internal to the room.
//
// A weight is decoded to the fp32 number that common/weights/dequantize.h gives it, and products
// run in the order of gemm_impl.h: the result has the bits of a product over the dequantised matrix
// (for finite scales). fma(scale, q, offset) is that number because scale * q is exact in fp32:
// fp16 scales have 11 bits, integer scales at most 7, codes at most 8. A zero may differ in its
// sign, which no sum that starts at +0 can tell.
#pragma once

#include "kernels/gemm_impl.h"

namespace baton {
namespace {

constexpr int kOctet = 8;  // inner elements that share a word of nibbles

// Scale and offset of 16 features.
struct Affine {
  F16 scale, offset;
};

template <WeightFormat Q>
BATON_V Affine LoadAffine(const std::byte* block, int half, int group) {
  constexpr QuantLayout kLayout = QuantLayoutOf(Q);
  const std::size_t c = std::size_t{16} * static_cast<std::size_t>(half);
  const auto fp16 = [&](std::size_t at) {
    return LoadHalf(reinterpret_cast<const std::uint16_t*>(block + at + 2 * c));
  };
  Affine a;
  a.scale = fp16(0);
  if constexpr (kLayout.has_scale) {
    const std::byte* scale = block + kLayout.scale() + group * kPanelCols + c;
    a.scale = a.scale * ToFloat(Q == WeightFormat::kQ6_K ? LoadInt8(scale) : LoadUint8(scale));
  }
  if constexpr (kLayout.has_m) a.offset = fp16(kLayout.m());
  if constexpr (kLayout.has_min) {
    a.offset = a.offset * (Splat(-1.0f) * ToFloat(LoadUint8(block + kLayout.min() + c)));
  }
  if constexpr (kLayout.zero != 0) a.offset = a.scale * Splat(static_cast<float>(-kLayout.zero));
  return a;
}

// The codes of 8 inner elements of 16 features, taken one element after the other.
template <WeightFormat Q>
struct Codes {
  static constexpr QuantLayout kLayout = QuantLayoutOf(Q);

  static inline __attribute__((always_inline)) Codes Load(const std::byte* block, int half,
                                                          int octet) {
    const std::byte* codes = block + kLayout.codes();
    const auto at = static_cast<std::size_t>(octet) * kPanelCols +
                    std::size_t{16} * static_cast<std::size_t>(half);
    Codes c;
    if constexpr (kLayout.code_bits == 8) {
      c.bytes = codes + kOctet * octet * kPanelCols + 16 * half;
    } else {
      c.nibbles = LoadWords(codes + 4 * at);
    }
    if constexpr (kLayout.high_bits == 1) {
      c.high = ShiftLeft<4>(LoadUint8(block + kLayout.high() + at));
    } else if constexpr (kLayout.high_bits == 2) {
      c.high = ShiftLeft<4>(LoadUint16(block + kLayout.high() + 2 * at));
    }
    return c;
  }

  inline __attribute__((always_inline)) F16 Next() {
    if constexpr (kLayout.code_bits == 8) {
      const F16 q = ToFloat(LoadInt8(bytes));
      bytes += kPanelCols;
      return q;
    } else {
      F16 q;
      if constexpr (kLayout.high_bits == 0) {
        q = NibbleToFloat(nibbles);
      } else {
        constexpr int kMask = ((1 << kLayout.high_bits) - 1) << 4;
        q = ToFloat(OrMasked(And(nibbles, 15), high, kMask));
        high = ShiftRight<kLayout.high_bits>(high);
      }
      nibbles = ShiftRight<4>(nibbles);
      return q;
    }
  }

  const std::byte* bytes = nullptr;
  I16 nibbles, high;
};

template <WeightFormat Q>
BATON_V F16 Decode(F16 q, const Affine& a) {
  constexpr QuantLayout kLayout = QuantLayoutOf(Q);
  if constexpr (kLayout.has_m || kLayout.zero != 0) return FmaT(q, a.scale, a.offset);
  return q * a.scale;
}

// One block: 32 x 32 weights.
template <WeightFormat Q>
BATON_V void UnpackBlock(const std::byte* block, float* dst) {
  constexpr QuantLayout kLayout = QuantLayoutOf(Q);
  constexpr int kOctets = kPanelBlock / kOctet / kLayout.groups;  // of a group
  for (int group = 0; group < kLayout.groups; ++group) {
    const Affine lo = LoadAffine<Q>(block, 0, group), hi = LoadAffine<Q>(block, 1, group);
    for (int i = 0; i < kOctets; ++i) {
      const int octet = group * kOctets + i;
      Codes<Q> a = Codes<Q>::Load(block, 0, octet), b = Codes<Q>::Load(block, 1, octet);
#pragma GCC unroll 8
      for (int j = 0; j < kOctet; ++j, dst += kPanelCols) {
        Store(dst, Decode<Q>(a.Next(), lo));
        Store(dst + 16, Decode<Q>(b.Next(), hi));
      }
    }
  }
}

template <WeightFormat Q>
void UnpackQuantPanel(const std::byte* w, std::int64_t k, float* dst) {
  constexpr std::size_t kBytes = QuantLayoutOf(Q).bytes();
  for (std::int64_t i = 0; i < k; i += kPanelBlock, w += kBytes) {
    UnpackBlock<Q>(w, dst + i * kPanelCols);
  }
}

// As Tile of gemm_impl.h over whole blocks, decoding in registers.
template <WeightFormat Q, int R, int P>
void QuantTile(const GemmTileArgs& g, const std::byte* w, float* acc) {
  constexpr QuantLayout kLayout = QuantLayoutOf(Q);
  constexpr int kOctets = kPanelBlock / kOctet / kLayout.groups;  // of a group
  constexpr std::size_t kAhead = 2048, kLine = 64;
  F16 a[P][R][2];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const float* src = acc + (p * R + r) * kPanelCols;
      a[p][r][0] = g.first ? Splat(0.0f) : Load(src);
      a[p][r][1] = g.first ? Splat(0.0f) : Load(src + 16);
    }
  }
  const float* xt = g.xt;
  for (std::int64_t k = 0; k + kPanelBlock <= g.k; k += kPanelBlock, w += kLayout.bytes()) {
    // The weights come from memory, and the hardware prefetcher alone stops at pages.
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      for (std::size_t i = 0; i < kLayout.bytes(); i += kLine) {
        __builtin_prefetch(w + p * g.panel_stride + kAhead + i);
      }
    }
    for (int group = 0; group < kLayout.groups; ++group) {
      Affine s[P][2];
#pragma GCC unroll 4
      for (int p = 0; p < P; ++p) {
        s[p][0] = LoadAffine<Q>(w + p * g.panel_stride, 0, group);
        s[p][1] = LoadAffine<Q>(w + p * g.panel_stride, 1, group);
      }
      for (int i = 0; i < kOctets; ++i) {
        const int octet = group * kOctets + i;
        Codes<Q> c[P][2];
#pragma GCC unroll 4
        for (int p = 0; p < P; ++p) {
          c[p][0] = Codes<Q>::Load(w + p * g.panel_stride, 0, octet);
          c[p][1] = Codes<Q>::Load(w + p * g.panel_stride, 1, octet);
        }
#pragma GCC unroll 8
        for (int j = 0; j < kOctet; ++j, xt += R) {
#pragma GCC unroll 4
          for (int p = 0; p < P; ++p) {
#pragma GCC unroll 2
            for (int h = 0; h < 2; ++h) {
              const F16 v = Decode<Q>(c[p][h].Next(), s[p][h]);
#pragma GCC unroll 4
              for (int r = 0; r < R; ++r) a[p][r][h] = FmaT(Splat(xt[r]), v, a[p][r][h]);
            }
          }
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      float* dst = acc + (p * R + r) * kPanelCols;
      Store(dst, a[p][r][0]);
      Store(dst + 16, a[p][r][1]);
    }
  }
}

template <WeightFormat Q, int R>
void QuantTileOfRows(const GemmTileArgs& g) {
  int p = 0;
  if constexpr (kQuantPanels > 1 && R <= 2) {
    for (; p + 2 <= g.panels; p += 2) {
      QuantTile<Q, R, 2>(g, g.w + p * g.panel_stride, g.acc + p * R * kPanelCols);
    }
  }
  for (; p < g.panels; ++p) {
    QuantTile<Q, R, 1>(g, g.w + p * g.panel_stride, g.acc + p * R * kPanelCols);
  }
}

// More rows than decoding in registers pays for: slices of two panels as fp32 in L1.
template <WeightFormat Q>
void QuantTileUnpacked(const GemmTileArgs& g) {
  constexpr int kSlice = 64, kPanels = 2;
  alignas(64) float wide[kPanels * kSlice * kPanelCols];
  GemmTileArgs t = g;
  t.format = WeightFormat::kF32;
  t.w = reinterpret_cast<const std::byte*>(wide);
  t.panel_stride = kSlice * kPanelCols * sizeof(float);
  for (int p = 0; p < g.panels; p += kPanels) {
    t.panels = g.panels - p < kPanels ? g.panels - p : kPanels;
    t.acc = g.acc + p * g.rows * kPanelCols;
    for (std::int64_t k = 0; k < g.k; k += kSlice) {
      t.k = g.k - k < kSlice ? g.k - k : kSlice;
      t.xt = g.xt + k * g.rows;
      t.first = g.first && k == 0;
      for (int i = 0; i < t.panels; ++i) {
        UnpackQuantPanel<Q>(g.w + (p + i) * g.panel_stride + PanelOffset(Q, k), t.k,
                            wide + i * kSlice * kPanelCols);
      }
      TileOfType<WeightFormat::kF32>(t);
    }
  }
}

template <WeightFormat Q>
void QuantTileOfFormat(const GemmTileArgs& g) {
  const std::int64_t whole = g.k / kPanelBlock * kPanelBlock;
  if (g.rows > kQuantRows || whole == 0) return QuantTileUnpacked<Q>(g);
  switch (g.rows) {
#define BATON_ROWS(n)                                        \
  case n:                                                    \
    if constexpr (n <= kQuantRows) QuantTileOfRows<Q, n>(g); \
    break
    BATON_ROWS(1);
    BATON_ROWS(2);
    BATON_ROWS(3);
    BATON_ROWS(4);
#undef BATON_ROWS
    default:
      break;
  }
  if (whole == g.k) return;
  GemmTileArgs rest = g;
  rest.k = g.k - whole;
  rest.xt = g.xt + whole * g.rows;
  rest.w = g.w + PanelOffset(Q, whole);
  rest.first = false;
  QuantTileUnpacked<Q>(rest);
}

}  // namespace
}  // namespace baton
