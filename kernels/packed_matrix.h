// A weight matrix packed once for matrix products, and the product.
//
// Results are *batch invariant*: each output element is a sum over the inner dimension in one
// fixed order (sequential fused multiply-adds in fp32), whatever the number of rows, threads or
// the instruction set. A token computed alone, in a batch, in a chunk or on another node of the
// same weights gets the same bits: that is what makes a handed-off prefix token-identical.
// A quantised weight counts as the fp32 number it stands for, so a matrix kept as it was stored
// gives the bits of its dequantised copy.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/executor.h"
#include "kernels/weight_format.h"

namespace baton {

class PackedMatrix {
 public:
  // Neighbouring rows in one format. A matrix of several parts may hold each in its own.
  struct Section {
    std::int64_t rows = 0;
    WeightFormat format = WeightFormat::kF32;
  };

  // Packs w [rows, cols] fp32 row major (an HF linear weight: out_features x in_features). Plain
  // formats round to nearest even; of the quantised ones those of CanQuantise.
  static PackedMatrix Pack(const float* w, std::int64_t rows, std::int64_t cols,
                           WeightFormat format, Executor& executor);
  PackedMatrix() = default;

  std::int64_t rows() const { return rows_; }  // output features
  std::int64_t cols() const { return cols_; }  // input features
  std::vector<Section> sections() const;
  std::size_t bytes() const { return bytes_; }
  // The rows from `row` on, in the same panels; nothing where they do not begin with a panel.
  std::optional<PackedMatrix> From(std::int64_t row) const;
  // One row back as fp32 [cols] (embedding look-up of a tied head), the bits it stands for.
  void UnpackRow(std::int64_t row, float* dst) const;

  // y[n, rows] (row stride ldy) = x[n, cols] (row stride ldx) * W^T, or y += with accumulate.
  // fp32 in and out.
  void Multiply(const float* x, std::int64_t ldx, std::int64_t n, float* y, std::int64_t ldy,
                bool accumulate, Executor& executor) const;

 private:
  friend class PackedMatrixBuilder;
  friend class WeakPackedMatrix;

  // Panels of 32 rows do not cross sections.
  struct Placed : Section {
    std::int64_t row = 0;    // the first
    std::int64_t panel = 0;  // the first
    std::int64_t panels = 0;
    std::size_t byte = 0;  // of the first panel
    std::size_t panel_bytes = 0;
  };
  struct Product;
  const Placed& SectionOfPanel(std::int64_t panel) const;
  void MultiplyFew(const Product& m, Executor& executor) const;
  void MultiplyMany(const Product& m, Executor& executor) const;

  std::int64_t rows_ = 0;
  std::int64_t cols_ = 0;
  std::vector<Placed> sections_;
  std::size_t bytes_ = 0;
  std::shared_ptr<std::byte[]> panels_;  // shared: copies are cheap, weights are immutable
};

// Packs a matrix in pieces, on any threads, from rows that are made on demand: the whole never
// exists in fp32.
class PackedMatrixBuilder {
 public:
  static constexpr std::int64_t kPanelRows = 32;
  // Writes rows [begin, begin + count) of the matrix to dst [count, cols] as fp32. `count` is at
  // most kPanelRows, and the rows are of one section.
  using RowReader = std::function<void(std::int64_t begin, std::int64_t count, float* dst)>;
  // The same as the section's format is stored: StoredRowBytes a row.
  using StoredReader = std::function<void(std::int64_t begin, std::int64_t count, std::byte* dst)>;

  PackedMatrixBuilder(std::int64_t rows, std::int64_t cols, WeightFormat format);
  // `cols` is whole stored blocks of every quantised section that is packed as stored.
  PackedMatrixBuilder(const std::vector<PackedMatrix::Section>& sections, std::int64_t cols);
  std::int64_t panels() const;
  // Index of the section that a panel is of.
  std::size_t SectionOf(std::int64_t panel) const;
  // Panels [begin, end); each panel once, by one of the two. Any thread.
  void Pack(std::int64_t begin, std::int64_t end, const RowReader& rows);
  void PackStored(std::int64_t begin, std::int64_t end, const StoredReader& rows);
  // When every panel is packed.
  PackedMatrix Finish() && { return std::move(matrix_); }

 private:
  PackedMatrix matrix_;
};

// A packed matrix that lives as long as somebody else holds it.
class WeakPackedMatrix {
 public:
  WeakPackedMatrix() = default;
  explicit WeakPackedMatrix(const PackedMatrix& matrix);
  // Nothing once the last holder is gone.
  std::optional<PackedMatrix> Lock() const;

 private:
  PackedMatrix shape_;  // without panels
  std::weak_ptr<std::byte[]> panels_;
};

}  // namespace baton
