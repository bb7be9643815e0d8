// Register tiles of the matrix product, compiled once per instruction set. Internal to the room.
#pragma once

#include "kernels/isa_table.h"
#include "kernels/simd.h"

namespace baton {
namespace {

template <WeightFormat D>
constexpr std::size_t PanelRowBytes() {
  return static_cast<std::size_t>(PackedRowBytes(D, 1)) * kPanelCols;
}

template <WeightFormat D>
BATON_V void LoadPanelRow(const std::byte* w, F16* lo, F16* hi) {
  if constexpr (D == WeightFormat::kF32) {
    const float* p = reinterpret_cast<const float*>(w);
    *lo = Load(p);
    *hi = Load(p + 16);
  } else if constexpr (D == WeightFormat::kBF16) {
    LoadBf16Pair(reinterpret_cast<const std::uint32_t*>(w), lo, hi);
  } else {
    const std::uint16_t* p = reinterpret_cast<const std::uint16_t*>(w);
    *lo = LoadHalf(p);
    *hi = LoadHalf(p + 16);
  }
}

// xs: floats between two k of xt. acc_rows: rows of acc per panel.
template <WeightFormat D, int R, int P>
void Tile(const GemmTileArgs& g, const float* xt, int xs, float* acc, int acc_rows) {
  F16 a[P][R][2];
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      const float* src = acc + (p * acc_rows + r) * kPanelCols;
      a[p][r][0] = g.first ? Splat(0.0f) : Load(src);
      a[p][r][1] = g.first ? Splat(0.0f) : Load(src + 16);
    }
  }
  // Few rows: the weights come from memory, and the hardware prefetcher alone stops at pages.
  constexpr bool kPrefetch = R <= 4;
  constexpr std::size_t kAhead = 2048;
  const std::byte* w = g.w;
  const std::size_t stride = g.panel_stride;
#pragma GCC unroll 2
  for (std::int64_t k = 0; k < g.k; ++k) {
#pragma GCC unroll 4
    for (int p = 0; p < P; ++p) {
      const std::byte* wp = w + p * stride;
      if constexpr (kPrefetch) {
        __builtin_prefetch(wp + kAhead);
        if constexpr (D == WeightFormat::kF32) __builtin_prefetch(wp + kAhead + 64);
      }
      F16 lo, hi;
      LoadPanelRow<D>(wp, &lo, &hi);
#pragma GCC unroll 12
      for (int r = 0; r < R; ++r) {
        const F16 x = Splat(xt[r]);
        a[p][r][0] = FmaT(x, lo, a[p][r][0]);
        a[p][r][1] = FmaT(x, hi, a[p][r][1]);
      }
    }
    xt += xs;
    w += PanelRowBytes<D>();
  }
#pragma GCC unroll 4
  for (int p = 0; p < P; ++p) {
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) {
      float* dst = acc + (p * acc_rows + r) * kPanelCols;
      Store(dst, a[p][r][0]);
      Store(dst + 16, a[p][r][1]);
    }
  }
}

// One half of a panel: 16 features.
template <WeightFormat D, int R, int H>
void HalfTile(const GemmTileArgs& g, const float* xt, int xs, float* acc) {
  F16 a[R];
  acc += H * 16;
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) a[r] = g.first ? Splat(0.0f) : Load(acc + r * kPanelCols);
  const std::byte* w = g.w;
#pragma GCC unroll 2
  for (std::int64_t k = 0; k < g.k; ++k) {
    // The first half brings the lines of both: few rows wait for the memory, as above.
    if constexpr (H == 0) {
      __builtin_prefetch(w + 2048);
      if constexpr (D == WeightFormat::kF32) __builtin_prefetch(w + 2048 + 64);
    }
    F16 half[2];
    LoadPanelRow<D>(w, &half[0], &half[1]);
#pragma GCC unroll 12
    for (int r = 0; r < R; ++r) a[r] = FmaT(Splat(xt[r]), half[H], a[r]);
    xt += xs;
    w += PanelRowBytes<D>();
  }
#pragma GCC unroll 12
  for (int r = 0; r < R; ++r) Store(acc + r * kPanelCols, a[r]);
}

template <WeightFormat D, int R>
void TileOfRows(const GemmTileArgs& g, const float* xt, int xs, float* acc, int acc_rows) {
  // Several panels at once: enough chains to hide the FMA's latency at few rows, and 6 x 64 needs
  // the fewest loads per FMA of all tiles (12 x 32 reaches 75 % of the peak, 6 x 64 all of it).
  if constexpr (R == 1) {
    switch (g.panels) {
      case 2:
        return Tile<D, 1, 2>(g, xt, xs, acc, acc_rows);
      case 3:
        return Tile<D, 1, 3>(g, xt, xs, acc, acc_rows);
      case 4:
        return Tile<D, 1, 4>(g, xt, xs, acc, acc_rows);
      default:
        return Tile<D, 1, 1>(g, xt, xs, acc, acc_rows);
    }
  } else if constexpr (R > kWholePanelRows) {
    GemmTileArgs one = g;
    for (int p = 0; p < g.panels; ++p) {
      one.w = g.w + p * g.panel_stride;
      HalfTile<D, R, 0>(one, xt, xs, acc + p * acc_rows * kPanelCols);
      HalfTile<D, R, 1>(one, xt, xs, acc + p * acc_rows * kPanelCols);
    }
  } else {
    GemmTileArgs one = g;
    int p = 0;
    if constexpr (R <= 6 && kGemmRows >= 12) {
      for (; p + 2 <= g.panels; p += 2) {
        one.w = g.w + p * g.panel_stride;
        Tile<D, R, 2>(one, xt, xs, acc + p * acc_rows * kPanelCols, acc_rows);
      }
    }
    for (; p < g.panels; ++p) {
      one.w = g.w + p * g.panel_stride;
      Tile<D, R, 1>(one, xt, xs, acc + p * acc_rows * kPanelCols, acc_rows);
    }
  }
}

template <WeightFormat D>
void TileOfType(const GemmTileArgs& g) {
  for (int r = 0; r < g.rows; r += kGemmRows) {
    const int rows = g.rows - r < kGemmRows ? g.rows - r : kGemmRows;
    const float* xt = g.xt + r;
    float* acc = g.acc + r * kPanelCols;
    switch (rows) {
#define BATON_ROWS(n)                                                           \
  case n:                                                                       \
    if constexpr (n <= kGemmRows) TileOfRows<D, n>(g, xt, g.rows, acc, g.rows); \
    break
      BATON_ROWS(1);
      BATON_ROWS(2);
      BATON_ROWS(3);
      BATON_ROWS(4);
      BATON_ROWS(5);
      BATON_ROWS(6);
      BATON_ROWS(7);
      BATON_ROWS(8);
      BATON_ROWS(9);
      BATON_ROWS(10);
      BATON_ROWS(11);
      BATON_ROWS(12);
#undef BATON_ROWS
      default:
        break;
    }
  }
}

template <WeightFormat D>
void UnpackPanelOf(const std::byte* w, std::int64_t k, float* dst) {
  for (std::int64_t i = 0; i < k; ++i) {
    F16 lo, hi;
    LoadPanelRow<D>(w + i * PanelRowBytes<D>(), &lo, &hi);
    Store(dst + i * kPanelCols, lo);
    Store(dst + i * kPanelCols + 16, hi);
  }
}

}  // namespace
}  // namespace baton
