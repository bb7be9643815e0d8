#include "kernels/packed_matrix.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/convert_math.h"
#include "kernels/cpu_features.h"
#include "kernels/isa_table.h"
#include "kernels/scratch.h"

namespace baton {
namespace {

// Layout of one panel of 32 output features, padded with zeros:
//   fp32, fp16: [cols][32]
//   bf16:       [cols][16] 32-bit words, feature c in the low half and c + 16 in the high half,
//               so that one shift and one mask widen a whole vector.
std::size_t PanelBytes(std::int64_t cols, DType dtype) {
  return static_cast<std::size_t>(cols) * kPanelCols * DTypeSize(dtype);
}

std::int64_t PanelCount(std::int64_t rows) { return (rows + kPanelCols - 1) / kPanelCols; }

// Index of feature c of one k in 16-bit units.
constexpr int Bf16Slot(int c) { return c < 16 ? 2 * c : 2 * (c - 16) + 1; }

void PackPanel(const float* w, std::int64_t rows, std::int64_t cols, DType dtype,
               std::byte* panel) {
  const int valid = static_cast<int>(std::min<std::int64_t>(rows, kPanelCols));
  float* f32 = reinterpret_cast<float*>(panel);
  std::uint16_t* h = reinterpret_cast<std::uint16_t*>(panel);
  constexpr std::int64_t kBlock = 16;  // one cache line of each row at a time
  for (std::int64_t k0 = 0; k0 < cols; k0 += kBlock) {
    const std::int64_t k1 = std::min(cols, k0 + kBlock);
    for (int c = 0; c < valid; ++c) {
      const float* src = w + c * cols;
      for (std::int64_t k = k0; k < k1; ++k) {
        switch (dtype) {
          case DType::kF32:
            f32[k * kPanelCols + c] = src[k];
            break;
          case DType::kBF16:
            h[k * kPanelCols + Bf16Slot(c)] = FloatToBf16(src[k]);
            break;
          case DType::kF16:
            h[k * kPanelCols + c] = FloatToHalf(src[k]);
            break;
        }
      }
    }
  }
}

// Rows of x in tiles as even as possible; a tile is stored [cols][tile rows].
struct RowTiles {
  RowTiles(std::int64_t n, int most)
      : count((n + most - 1) / most), base(n / count), longer(n % count) {}
  std::int64_t begin(std::int64_t t) const { return t * base + std::min(t, longer); }
  int rows(std::int64_t t) const { return static_cast<int>(base + (t < longer ? 1 : 0)); }

  std::int64_t count;
  std::int64_t base;
  std::int64_t longer;  // tiles with one row more than `base`
};

void TransposeTile(const float* x, std::int64_t ldx, int rows, std::int64_t cols, float* dst) {
  if (rows == 1) {
    std::memcpy(dst, x, sizeof(float) * static_cast<std::size_t>(cols));
    return;
  }
  constexpr std::int64_t kBlock = 16;
  for (std::int64_t k0 = 0; k0 < cols; k0 += kBlock) {
    const std::int64_t k1 = std::min(cols, k0 + kBlock);
    for (int r = 0; r < rows; ++r) {
      const float* src = x + r * ldx;
      for (std::int64_t k = k0; k < k1; ++k) dst[k * rows + r] = src[k];
    }
  }
}

// Writes or adds acc [n][32] to `valid` columns of y.
void StoreRows(const float* acc, std::int64_t n, int valid, float* y, std::int64_t ldy,
               bool accumulate) {
  for (std::int64_t r = 0; r < n; ++r) {
    const float* a = acc + r * kPanelCols;
    float* dst = y + r * ldy;
    if (accumulate) {
      for (int c = 0; c < valid; ++c) dst[c] += a[c];
    } else {
      std::memcpy(dst, a, sizeof(float) * static_cast<std::size_t>(valid));
    }
  }
}

// What one product needs, shared by the two strategies.
struct Product {
  const std::byte* panels;
  std::size_t panel_bytes;
  DType dtype;
  std::int64_t features;
  std::int64_t cols;
  const float* xt;
  std::int64_t n;
  float* y;
  std::int64_t ldy;
  bool accumulate;

  int Valid(std::int64_t panel) const {
    return static_cast<int>(std::min<std::int64_t>(kPanelCols, features - panel * kPanelCols));
  }
};

// One tile of rows: weights stream through once, several panels at a time.
void MultiplyFew(const Product& m, Executor& executor) {
  const KernelTable& kernels = Kernels();
  const int rows = static_cast<int>(m.n);
  const std::int64_t panels = PanelCount(m.features);
  executor.ParallelFor(panels, 1, [&](std::int64_t begin, std::int64_t end) {
    constexpr int kGroup = 4;
    alignas(64) float acc[kGroup * kMaxTileRows * kPanelCols];
    for (std::int64_t p = begin; p < end; p += kGroup) {
      GemmTileArgs g;
      g.dtype = m.dtype;
      g.rows = rows;
      g.panels = static_cast<int>(std::min<std::int64_t>(kGroup, end - p));
      g.k = m.cols;
      g.xt = m.xt;
      g.w = m.panels + static_cast<std::size_t>(p) * m.panel_bytes;
      g.panel_stride = m.panel_bytes;
      g.acc = acc;
      kernels.gemm_tile(g);
      for (int i = 0; i < g.panels; ++i) {
        StoreRows(acc + i * rows * kPanelCols, rows, m.Valid(p + i), m.y + (p + i) * kPanelCols,
                  m.ldy, m.accumulate);
      }
    }
  });
}

// Many rows: blocks of rows x a pair of panels; a slice of the inner dimension at a time, so that
// the pair's slice stays in L1 while all row tiles pass over it.
constexpr int kManyTileRows = 6;
constexpr int kPair = 2;
constexpr std::int64_t kMaxInner = 128;      // a pair's slice: 32 KB of fp32
constexpr std::int64_t kTilesPerBlock = 12;  // their accumulators: 18 KB, x from L2

struct ManyPlan {
  ManyPlan(const Product& m, const RowTiles& tiles, int threads)
      : pairs((PanelCount(m.features) + kPair - 1) / kPair) {
    const std::int64_t slices = (m.cols + kMaxInner - 1) / kMaxInner;
    inner = ((m.cols + slices - 1) / slices + 15) / 16 * 16;
    // Small blocks keep the accumulators near; enough of them to keep every thread busy.
    const std::int64_t busy = (4 * threads + pairs - 1) / pairs;
    std::int64_t want = std::max((tiles.count + kTilesPerBlock - 1) / kTilesPerBlock, busy);
    want = std::min(want, tiles.count);
    tiles_per_block = (tiles.count + want - 1) / want;
    blocks = (tiles.count + tiles_per_block - 1) / tiles_per_block;
  }
  std::int64_t pairs;
  std::int64_t inner;
  std::int64_t tiles_per_block;
  std::int64_t blocks;
};

// Tiles [t0, t1) times panels [panel, panel + g.panels).
void MultiplyBlock(const Product& m, const RowTiles& tiles, std::int64_t inner, std::int64_t t0,
                   std::int64_t t1, std::int64_t panel, GemmTileArgs g) {
  const KernelTable& kernels = Kernels();
  const std::int64_t row0 = tiles.begin(t0);
  const int width = kPair * kPanelCols;
  float* acc = ThreadScratch(ScratchSlot::kAccumulators,
                             static_cast<std::size_t>((t1 - t0) * kManyTileRows * width));
  float* wide = ThreadScratch(ScratchSlot::kWeights, kPair * kMaxInner * kPanelCols);
  const std::byte* w = m.panels + static_cast<std::size_t>(panel) * m.panel_bytes;
  for (std::int64_t k = 0; k < m.cols; k += inner) {
    g.k = std::min(inner, m.cols - k);
    g.w = w + static_cast<std::size_t>(k) * kPanelCols * DTypeSize(m.dtype);
    g.panel_stride = m.panel_bytes;
    if (m.dtype != DType::kF32) {
      for (int i = 0; i < g.panels; ++i) {
        kernels.unpack_panel(m.dtype, g.w + static_cast<std::size_t>(i) * m.panel_bytes, g.k,
                             wide + i * kMaxInner * kPanelCols);
      }
      g.w = reinterpret_cast<const std::byte*>(wide);
      g.panel_stride = kMaxInner * kPanelCols * sizeof(float);
    }
    g.first = k == 0;
    for (std::int64_t t = t0; t < t1; ++t) {
      g.rows = tiles.rows(t);
      g.xt = m.xt + tiles.begin(t) * m.cols + k * g.rows;
      g.acc = acc + (tiles.begin(t) - row0) * width;
      kernels.gemm_tile(g);
    }
  }
  for (std::int64_t t = t0; t < t1; ++t) {
    const float* tile = acc + (tiles.begin(t) - row0) * width;
    for (int i = 0; i < g.panels; ++i) {
      StoreRows(tile + i * tiles.rows(t) * kPanelCols, tiles.rows(t), m.Valid(panel + i),
                m.y + tiles.begin(t) * m.ldy + (panel + i) * kPanelCols, m.ldy, m.accumulate);
    }
  }
}

void MultiplyMany(const Product& m, const RowTiles& tiles, Executor& executor) {
  const ManyPlan plan(m, tiles, executor.threads());
  executor.ParallelFor(plan.blocks * plan.pairs, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t u = begin; u < end; ++u) {
      // All blocks of rows for one pair of panels, then the next pair: weights come from memory
      // once.
      const std::int64_t panel = u / plan.blocks * kPair;
      const std::int64_t t0 = u % plan.blocks * plan.tiles_per_block;
      GemmTileArgs g;
      g.panels = static_cast<int>(std::min<std::int64_t>(kPair, PanelCount(m.features) - panel));
      MultiplyBlock(m, tiles, plan.inner, t0, std::min(tiles.count, t0 + plan.tiles_per_block),
                    panel, g);
    }
  });
}

}  // namespace

static_assert(PackedMatrixBuilder::kPanelRows == kPanelCols);

PackedMatrixBuilder::PackedMatrixBuilder(std::int64_t rows, std::int64_t cols, DType dtype) {
  matrix_.rows_ = rows;
  matrix_.cols_ = cols;
  matrix_.dtype_ = dtype;
  matrix_.bytes_ = static_cast<std::size_t>(PanelCount(rows)) * PanelBytes(cols, dtype);
  if (matrix_.bytes_ == 0) return;
  // A panel is a whole number of cache lines.
  auto* data = static_cast<std::byte*>(std::aligned_alloc(64, matrix_.bytes_));
  if (data == nullptr) throw std::bad_alloc();
  matrix_.panels_ = std::shared_ptr<std::byte[]>(data, [](std::byte* p) { std::free(p); });
}

void PackedMatrixBuilder::Pack(std::int64_t begin, std::int64_t end, const RowReader& rows) {
  const std::int64_t cols = matrix_.cols_;
  const std::size_t panel_bytes = PanelBytes(cols, matrix_.dtype_);
  if (panel_bytes == 0) return;
  float* src = ThreadScratch(ScratchSlot::kPackedRows, static_cast<std::size_t>(kPanelRows * cols));
  for (std::int64_t p = begin; p < end; ++p) {
    std::byte* panel = matrix_.panels_.get() + static_cast<std::size_t>(p) * panel_bytes;
    const std::int64_t count = std::min(kPanelRows, matrix_.rows_ - p * kPanelRows);
    if (count < kPanelRows) std::memset(panel, 0, panel_bytes);
    rows(p * kPanelRows, count, src);
    PackPanel(src, count, cols, matrix_.dtype_, panel);
  }
}

PackedMatrix PackedMatrix::Pack(const float* w, std::int64_t rows, std::int64_t cols, DType dtype,
                                Executor& executor) {
  PackedMatrixBuilder builder(rows, cols, dtype);
  executor.ParallelFor(builder.panels(), 1, [&](std::int64_t begin, std::int64_t end) {
    builder.Pack(begin, end, [&](std::int64_t row, std::int64_t count, float* dst) {
      std::memcpy(dst, w + row * cols, sizeof(float) * static_cast<std::size_t>(count * cols));
    });
  });
  return std::move(builder).Finish();
}

WeakPackedMatrix::WeakPackedMatrix(const PackedMatrix& matrix)
    : shape_(matrix), panels_(matrix.panels_) {
  shape_.panels_.reset();
}

std::optional<PackedMatrix> WeakPackedMatrix::Lock() const {
  PackedMatrix matrix = shape_;
  matrix.panels_ = panels_.lock();
  if (matrix.panels_ == nullptr) return std::nullopt;
  return matrix;
}

void PackedMatrix::UnpackRow(std::int64_t row, float* dst) const {
  const std::byte* panel =
      panels_.get() + static_cast<std::size_t>(row / kPanelCols) * PanelBytes(cols_, dtype_);
  const int c = static_cast<int>(row % kPanelCols);
  const float* f32 = reinterpret_cast<const float*>(panel);
  const std::uint16_t* h = reinterpret_cast<const std::uint16_t*>(panel);
  for (std::int64_t k = 0; k < cols_; ++k) {
    switch (dtype_) {
      case DType::kF32:
        dst[k] = f32[k * kPanelCols + c];
        break;
      case DType::kBF16:
        dst[k] = Bf16ToFloat(h[k * kPanelCols + Bf16Slot(c)]);
        break;
      case DType::kF16:
        dst[k] = HalfToFloat(h[k * kPanelCols + c]);
        break;
    }
  }
}

void PackedMatrix::Multiply(const float* x, std::int64_t ldx, std::int64_t n, float* y,
                            std::int64_t ldy, bool accumulate, Executor& executor) const {
  if (n <= 0 || rows_ == 0) return;
  if (cols_ == 0) {
    if (accumulate) return;
    for (std::int64_t r = 0; r < n; ++r) std::fill_n(y + r * ldy, rows_, 0.0f);
    return;
  }
  Product m{panels_.get(), PanelBytes(cols_, dtype_), dtype_, rows_, cols_, x, n, y, ldy,
            accumulate};
  const bool few = n <= kMaxTileRows;
  const RowTiles tiles(n, few ? kMaxTileRows : kManyTileRows);
  if (n > 1) {
    float* xt = ThreadScratch(ScratchSlot::kPackedRows, static_cast<std::size_t>(n * cols_));
    m.xt = xt;
    executor.ParallelFor(tiles.count, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t t = begin; t < end; ++t) {
        TransposeTile(x + tiles.begin(t) * ldx, ldx, tiles.rows(t), cols_,
                      xt + tiles.begin(t) * cols_);
      }
    });
  }
  if (few) {
    MultiplyFew(m, executor);
  } else {
    MultiplyMany(m, tiles, executor);
  }
}

}  // namespace baton
