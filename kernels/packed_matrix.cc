#include "kernels/packed_matrix.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

#include "kernels/cpu_features.h"
#include "kernels/isa_table.h"
#include "kernels/panel.h"
#include "kernels/scratch.h"

namespace baton {
namespace {

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

// Many rows: blocks of rows x a pair of panels; a slice of the inner dimension at a time, so that
// the pair's slice stays in L1 while all row tiles pass over it.
constexpr int kManyTileRows = 6;
constexpr int kPair = 2;
constexpr std::int64_t kMaxInner = 128;      // a pair's slice: 32 KB of fp32
constexpr std::int64_t kTilesPerBlock = 12;  // their accumulators: 18 KB, x from L2

struct ManyPlan {
  ManyPlan(std::int64_t pairs, std::int64_t cols, const RowTiles& tiles, int threads) {
    const std::int64_t slices = (cols + kMaxInner - 1) / kMaxInner;
    inner = ((cols + slices - 1) / slices + kPanelBlock - 1) / kPanelBlock * kPanelBlock;
    // Small blocks keep the accumulators near; enough of them to keep every thread busy.
    const std::int64_t busy = (4 * threads + pairs - 1) / pairs;
    std::int64_t want = std::max((tiles.count + kTilesPerBlock - 1) / kTilesPerBlock, busy);
    want = std::min(want, tiles.count);
    tiles_per_block = (tiles.count + want - 1) / want;
    blocks = (tiles.count + tiles_per_block - 1) / tiles_per_block;
  }
  std::int64_t inner;
  std::int64_t tiles_per_block;
  std::int64_t blocks;
};

std::int64_t Pairs(std::int64_t panels) { return (panels + kPair - 1) / kPair; }

// Some panels of a section, and where their features lie in y.
struct PanelRun {
  WeightFormat format;
  const std::byte* w;
  std::size_t panel_bytes;
  int panels;
  std::int64_t row;       // of the first feature
  std::int64_t features;  // that are not padding

  int Valid(int i) const {
    return static_cast<int>(std::min<std::int64_t>(kPanelCols, features - i * kPanelCols));
  }
};

// What one product needs beside the weights.
struct Operands {
  const float* xt;  // tiles of rows, each [cols][tile rows]
  std::int64_t n;
  std::int64_t cols;
  float* y;
  std::int64_t ldy;
  bool accumulate;
};

// Tiles [t0, t1) times a pair of panels.
void MultiplyBlock(const Operands& m, const PanelRun& run, const RowTiles& tiles,
                   std::int64_t inner, std::int64_t t0, std::int64_t t1) {
  const KernelTable& kernels = Kernels();
  const std::int64_t row0 = tiles.begin(t0);
  const int width = kPair * kPanelCols;
  float* acc = ThreadScratch(ScratchSlot::kAccumulators,
                             static_cast<std::size_t>((t1 - t0) * kManyTileRows * width));
  float* wide = ThreadScratch(ScratchSlot::kWeights, kPair * kMaxInner * kPanelCols);
  GemmTileArgs g;
  g.format = WeightFormat::kF32;
  g.panels = run.panels;
  for (std::int64_t k = 0; k < m.cols; k += inner) {
    g.k = std::min(inner, m.cols - k);
    g.w = run.w + PanelOffset(run.format, k);
    g.panel_stride = run.panel_bytes;
    if (run.format != WeightFormat::kF32) {
      for (int i = 0; i < g.panels; ++i) {
        kernels.unpack_panel(run.format, g.w + static_cast<std::size_t>(i) * run.panel_bytes, g.k,
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
      StoreRows(tile + i * tiles.rows(t) * kPanelCols, tiles.rows(t), run.Valid(i),
                m.y + tiles.begin(t) * m.ldy + run.row + i * kPanelCols, m.ldy, m.accumulate);
    }
  }
}

}  // namespace

static_assert(PackedMatrixBuilder::kPanelRows == kPanelCols);

struct PackedMatrix::Product : Operands {
  // Up to `most` panels of one section, from the matrix's panel `panel` on.
  PanelRun Run(const PackedMatrix& w, const Placed& s, std::int64_t panel,
               std::int64_t most) const {
    const std::int64_t at = panel - s.panel;
    return {s.format,
            w.panels_.get() + s.byte + static_cast<std::size_t>(at) * s.panel_bytes,
            s.panel_bytes,
            static_cast<int>(std::min(most, s.panels - at)),
            s.row + at * kPanelCols,
            s.rows - at * kPanelCols};
  }
};

const PackedMatrix::Placed& PackedMatrix::SectionOfPanel(std::int64_t panel) const {
  std::size_t i = sections_.size() - 1;
  while (sections_[i].panel > panel) --i;
  return sections_[i];
}

// One tile of rows: weights stream through once, several panels at a time.
void PackedMatrix::MultiplyFew(const Product& m, Executor& executor) const {
  const KernelTable& kernels = Kernels();
  const int rows = static_cast<int>(m.n);
  const std::int64_t panels = sections_.back().panel + sections_.back().panels;
  executor.ParallelFor(panels, 1, [&](std::int64_t begin, std::int64_t end) {
    constexpr int kGroup = 4;
    alignas(64) float acc[kGroup * kMaxTileRows * kPanelCols];
    for (std::int64_t p = begin; p < end;) {
      const PanelRun run =
          m.Run(*this, SectionOfPanel(p), p, std::min<std::int64_t>(kGroup, end - p));
      GemmTileArgs g;
      g.format = run.format;
      g.rows = rows;
      g.panels = run.panels;
      g.k = m.cols;
      g.xt = m.xt;
      g.w = run.w;
      g.panel_stride = run.panel_bytes;
      g.acc = acc;
      kernels.gemm_tile(g);
      for (int i = 0; i < run.panels; ++i) {
        StoreRows(acc + i * rows * kPanelCols, rows, run.Valid(i), m.y + run.row + i * kPanelCols,
                  m.ldy, m.accumulate);
      }
      p += run.panels;
    }
  });
}

void PackedMatrix::MultiplyMany(const Product& m, Executor& executor) const {
  const RowTiles tiles(m.n, kManyTileRows);
  std::int64_t pairs = 0;
  for (const Placed& s : sections_) pairs += Pairs(s.panels);
  const ManyPlan plan(pairs, m.cols, tiles, executor.threads());
  executor.ParallelFor(plan.blocks * pairs, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t u = begin; u < end; ++u) {
      // All blocks of rows for one pair of panels, then the next pair: weights come from memory
      // once.
      std::int64_t pair = u / plan.blocks;
      auto s = sections_.begin();
      for (; pair >= Pairs(s->panels); ++s) pair -= Pairs(s->panels);
      const std::int64_t t0 = u % plan.blocks * plan.tiles_per_block;
      MultiplyBlock(m, m.Run(*this, *s, s->panel + pair * kPair, kPair), tiles, plan.inner, t0,
                    std::min(tiles.count, t0 + plan.tiles_per_block));
    }
  });
}

PackedMatrixBuilder::PackedMatrixBuilder(std::int64_t rows, std::int64_t cols, WeightFormat format)
    : PackedMatrixBuilder({{rows, format}}, cols) {}

PackedMatrixBuilder::PackedMatrixBuilder(const std::vector<PackedMatrix::Section>& sections,
                                         std::int64_t cols) {
  matrix_.cols_ = cols;
  std::int64_t panel = 0;
  for (const PackedMatrix::Section& section : sections) {
    if (section.rows == 0) continue;
    PackedMatrix::Placed s;
    s.rows = section.rows;
    s.format = section.format;
    s.row = matrix_.rows_;
    s.panel = panel;
    s.panels = (s.rows + kPanelRows - 1) / kPanelRows;
    s.byte = matrix_.bytes_;
    s.panel_bytes = PanelBytes(s.format, cols);
    matrix_.rows_ += s.rows;
    matrix_.bytes_ += static_cast<std::size_t>(s.panels) * s.panel_bytes;
    panel += s.panels;
    matrix_.sections_.push_back(s);
  }
  if (matrix_.bytes_ == 0) return;
  // A panel is a whole number of cache lines.
  auto* data = static_cast<std::byte*>(std::aligned_alloc(64, matrix_.bytes_));
  if (data == nullptr) throw std::bad_alloc();
  matrix_.panels_ = std::shared_ptr<std::byte[]>(data, [](std::byte* p) { std::free(p); });
}

std::int64_t PackedMatrixBuilder::panels() const {
  if (matrix_.sections_.empty()) return 0;
  return matrix_.sections_.back().panel + matrix_.sections_.back().panels;
}

std::size_t PackedMatrixBuilder::SectionOf(std::int64_t panel) const {
  return static_cast<std::size_t>(&matrix_.SectionOfPanel(panel) - matrix_.sections_.data());
}

void PackedMatrixBuilder::Pack(std::int64_t begin, std::int64_t end, const RowReader& rows) {
  const std::int64_t cols = matrix_.cols_;
  if (cols == 0) return;
  float* src = ThreadScratch(ScratchSlot::kPackedRows, static_cast<std::size_t>(kPanelRows * cols));
  for (std::int64_t p = begin; p < end; ++p) {
    const PackedMatrix::Placed& s = matrix_.SectionOfPanel(p);
    const std::int64_t row = (p - s.panel) * kPanelRows;
    const std::int64_t count = std::min(kPanelRows, s.rows - row);
    rows(s.row + row, count, src);
    PackPanel(
        s.format, src, static_cast<int>(count), cols,
        matrix_.panels_.get() + s.byte + static_cast<std::size_t>(p - s.panel) * s.panel_bytes);
  }
}

void PackedMatrixBuilder::PackStored(std::int64_t begin, std::int64_t end,
                                     const StoredReader& rows) {
  const std::int64_t cols = matrix_.cols_;
  if (cols == 0) return;
  for (std::int64_t p = begin; p < end; ++p) {
    const PackedMatrix::Placed& s = matrix_.SectionOfPanel(p);
    const std::int64_t row = (p - s.panel) * kPanelRows;
    const std::int64_t count = std::min(kPanelRows, s.rows - row);
    const auto bytes = static_cast<std::size_t>(count * StoredRowBytes(s.format, cols));
    auto* src = reinterpret_cast<std::byte*>(
        ThreadScratch(ScratchSlot::kPackedRows, bytes / sizeof(float) + 1));
    rows(s.row + row, count, src);
    PackStoredPanel(
        s.format, src, static_cast<int>(count), cols,
        matrix_.panels_.get() + s.byte + static_cast<std::size_t>(p - s.panel) * s.panel_bytes);
  }
}

PackedMatrix PackedMatrix::Pack(const float* w, std::int64_t rows, std::int64_t cols,
                                WeightFormat format, Executor& executor) {
  PackedMatrixBuilder builder(rows, cols, format);
  executor.ParallelFor(builder.panels(), 1, [&](std::int64_t begin, std::int64_t end) {
    builder.Pack(begin, end, [&](std::int64_t row, std::int64_t count, float* dst) {
      std::memcpy(dst, w + row * cols, sizeof(float) * static_cast<std::size_t>(count * cols));
    });
  });
  return std::move(builder).Finish();
}

std::vector<PackedMatrix::Section> PackedMatrix::sections() const {
  return {sections_.begin(), sections_.end()};
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

std::optional<PackedMatrix> PackedMatrix::From(std::int64_t row) const {
  PackedMatrix tail;
  tail.cols_ = cols_;
  tail.panels_ = panels_;
  std::int64_t panel = 0;
  for (Placed s : sections_) {
    const std::int64_t skipped = std::clamp<std::int64_t>(row - s.row, 0, s.rows);
    if (skipped == s.rows) continue;
    if (skipped % kPanelCols != 0) return std::nullopt;
    const std::int64_t panels = skipped / kPanelCols;
    s.byte += static_cast<std::size_t>(panels) * s.panel_bytes;
    s.rows -= skipped;
    s.panels -= panels;
    s.row = tail.rows_;
    s.panel = panel;
    tail.rows_ += s.rows;
    tail.bytes_ += static_cast<std::size_t>(s.panels) * s.panel_bytes;
    panel += s.panels;
    tail.sections_.push_back(s);
  }
  return tail;
}

void PackedMatrix::UnpackRow(std::int64_t row, float* dst) const {
  std::size_t i = sections_.size() - 1;
  while (sections_[i].row > row) --i;
  const Placed& s = sections_[i];
  const std::int64_t in_section = row - s.row;
  const std::byte* panel =
      panels_.get() + s.byte + static_cast<std::size_t>(in_section / kPanelCols) * s.panel_bytes;
  UnpackPanelRow(s.format, panel, static_cast<int>(in_section % kPanelCols), cols_, dst);
}

void PackedMatrix::Multiply(const float* x, std::int64_t ldx, std::int64_t n, float* y,
                            std::int64_t ldy, bool accumulate, Executor& executor) const {
  if (n <= 0 || rows_ == 0) return;
  if (cols_ == 0) {
    if (accumulate) return;
    for (std::int64_t r = 0; r < n; ++r) std::fill_n(y + r * ldy, rows_, 0.0f);
    return;
  }
  Product m{{x, n, cols_, y, ldy, accumulate}};
  const bool few = n <= kMaxTileRows;
  if (n > 1) {
    const RowTiles tiles(n, few ? kMaxTileRows : kManyTileRows);
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
    MultiplyMany(m, executor);
  }
}

}  // namespace baton
