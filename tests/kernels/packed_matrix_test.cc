#include "kernels/packed_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/convert_math.h"
#include "tests/kernels/test_util.h"

namespace baton {
namespace {

float Rounded(float x, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return x;
    case DType::kBF16:
      return Bf16ToFloat(FloatToBf16(x));
    case DType::kF16:
      return HalfToFloat(FloatToHalf(x));
  }
  return x;
}

void ExpectProduct(std::int64_t n, std::int64_t rows, std::int64_t cols, DType dtype,
                   bool accumulate, Executor& executor) {
  SCOPED_TRACE(testing::Message() << n << "x" << cols << " * " << rows << " " << DTypeName(dtype));
  const std::int64_t ldx = cols + 3, ldy = rows + 5;
  const auto w = RandomFloats(static_cast<std::size_t>(rows * cols), 1);
  const auto x = RandomFloats(static_cast<std::size_t>(n * ldx), 2);
  auto y = RandomFloats(static_cast<std::size_t>(n * ldy), 3);
  const auto before = y;
  const PackedMatrix m = PackedMatrix::Pack(w.data(), rows, cols, dtype, executor);
  m.Multiply(x.data(), ldx, n, y.data(), ldy, accumulate, executor);
  for (std::int64_t i = 0; i < n; ++i) {
    for (std::int64_t j = 0; j < ldy; ++j) {
      const std::size_t at = static_cast<std::size_t>(i * ldy + j);
      if (j >= rows) {
        ASSERT_EQ(y[at], before[at]) << "wrote beyond its columns";
        continue;
      }
      double want = accumulate ? before[at] : 0.0, scale = std::fabs(want);
      for (std::int64_t k = 0; k < cols; ++k) {
        const double term = static_cast<double>(x[static_cast<std::size_t>(i * ldx + k)]) *
                            Rounded(w[static_cast<std::size_t>(j * cols + k)], dtype);
        want += term;
        scale += std::fabs(term);
      }
      const double tolerance = std::ldexp(1.0, -24) * (static_cast<double>(cols) / 4 + 4) * scale;
      ASSERT_NEAR(y[at], want, tolerance) << i << "," << j;
    }
  }
}

TEST(PackedMatrix, PiecesInAnyOrderAreTheWhole) {
  SerialExecutor executor;
  const std::int64_t rows = 75, cols = 19;  // the last panel has 11 rows
  const auto w = RandomFloats(static_cast<std::size_t>(rows * cols), 4);
  for (DType dtype : kAllDTypes) {
    PackedMatrixBuilder builder(rows, cols, dtype);
    ASSERT_EQ(builder.panels(), 3);
    const auto read = [&](std::int64_t begin, std::int64_t count, float* dst) {
      ASSERT_LE(count, PackedMatrixBuilder::kPanelRows);
      std::copy_n(w.data() + begin * cols, count * cols, dst);
    };
    builder.Pack(1, 3, read);
    builder.Pack(0, 1, read);
    const PackedMatrix m = std::move(builder).Finish();
    ASSERT_EQ(m.rows(), rows);
    EXPECT_EQ(m.bytes(), static_cast<std::size_t>(96 * cols) * DTypeSize(dtype));
    std::vector<float> row(static_cast<std::size_t>(cols));
    for (std::int64_t r = 0; r < rows; ++r) {
      m.UnpackRow(r, row.data());
      for (std::int64_t k = 0; k < cols; ++k) {
        ASSERT_EQ(row[static_cast<std::size_t>(k)],
                  Rounded(w[static_cast<std::size_t>(r * cols + k)], dtype));
      }
    }
  }
}

TEST(PackedMatrix, WeakReferencesKeepNothingAlive) {
  SerialExecutor executor;
  const auto w = RandomFloats(64, 5);
  auto m =
      std::make_unique<PackedMatrix>(PackedMatrix::Pack(w.data(), 8, 8, DType::kF32, executor));
  const WeakPackedMatrix weak(*m);
  auto held = weak.Lock();
  ASSERT_TRUE(held);
  EXPECT_EQ(held->bytes(), m->bytes());
  m.reset();
  std::vector<float> row(8);
  held->UnpackRow(7, row.data());
  EXPECT_EQ(row[7], w[63]);
  EXPECT_TRUE(weak.Lock());
  held.reset();
  EXPECT_FALSE(weak.Lock());
  EXPECT_FALSE(WeakPackedMatrix().Lock());
}

TEST(PackedMatrix, EqualsFloat64AtOddSizes) {
  auto pool = MakeThreadPool(2);
  for (IsaLevel level : AvailableLevels()) {
    SCOPED_TRACE(IsaName(level));
    ScopedIsa isa(level);
    for (DType dtype : kAllDTypes) {
      for (std::int64_t n : {1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 25, 37}) {
        ExpectProduct(n, 33, 17, dtype, false, *pool);
        ExpectProduct(n, 97, 40, dtype, true, *pool);
      }
      ExpectProduct(1, 1, 1, dtype, false, *pool);
      ExpectProduct(3, 32, 600, dtype, true, *pool);
      ExpectProduct(130, 65, 530, dtype, false, *pool);
    }
  }
}

// Enough rows and columns for several row blocks and several passes over the inner dimension.
TEST(PackedMatrix, EqualsFloat64OverSeveralBlocks) {
  auto pool = MakeThreadPool(2);
  ExpectProduct(600, 40, 1100, DType::kBF16, true, *pool);
}

TEST(PackedMatrix, EmptySizes) {
  SerialExecutor serial;
  const float w[4] = {1, 2, 3, 4};
  float y[2] = {7, 7};
  PackedMatrix::Pack(w, 2, 2, DType::kF32, serial).Multiply(w, 2, 0, y, 2, false, serial);
  EXPECT_EQ(y[0], 7);
  PackedMatrix().Multiply(w, 2, 1, y, 2, false, serial);
  EXPECT_EQ(y[0], 7);
  // An empty sum is zero.
  PackedMatrix::Pack(w, 2, 0, DType::kF32, serial).Multiply(w, 0, 1, y, 2, true, serial);
  EXPECT_EQ(y[0], 7);
  PackedMatrix::Pack(w, 2, 0, DType::kF32, serial).Multiply(w, 0, 1, y, 2, false, serial);
  EXPECT_EQ(y[1], 0);
}

TEST(PackedMatrix, UnpackRowGivesTheRoundedWeights) {
  SerialExecutor serial;
  const auto w = RandomFloats(70 * 19, 4);
  for (DType dtype : kAllDTypes) {
    const PackedMatrix m = PackedMatrix::Pack(w.data(), 70, 19, dtype, serial);
    EXPECT_EQ(m.bytes(), 96 * 19 * DTypeSize(dtype));
    for (int r = 0; r < 70; ++r) {
      float row[19];
      m.UnpackRow(r, row);
      for (int k = 0; k < 19; ++k) {
        ASSERT_EQ(row[k], Rounded(w[static_cast<std::size_t>(r * 19 + k)], dtype));
      }
    }
  }
}

// A row gives the same bits alone, at any place of a batch of any size, on any number of threads
// and on every instruction set.
TEST(PackedMatrix, BatchInvariantToTheBit) {
  constexpr std::int64_t kRows = 200, kCols = 577, kMax = 61;
  const auto w = RandomFloats(kRows * kCols, 5);
  const auto x = RandomFloats(kMax * kCols, 6);
  SerialExecutor serial;
  auto two = MakeThreadPool(2);
  auto three = MakeThreadPool(3);
  for (DType dtype : kAllDTypes) {
    const PackedMatrix m = PackedMatrix::Pack(w.data(), kRows, kCols, dtype, serial);
    std::vector<float> alone(kMax * kRows);
    {
      ScopedIsa isa(IsaLevel::kGeneric);
      for (std::int64_t i = 0; i < kMax; ++i) {
        m.Multiply(&x[static_cast<std::size_t>(i * kCols)], kCols, 1,
                   &alone[static_cast<std::size_t>(i * kRows)], kRows, false, serial);
      }
    }
    for (IsaLevel level : AvailableLevels()) {
      ScopedIsa isa(level);
      for (Executor* executor : {static_cast<Executor*>(&serial), two.get(), three.get()}) {
        for (std::int64_t n : {1, 2, 3, 4, 6, 8, 12, 13, 37, 61}) {
          std::vector<float> y(static_cast<std::size_t>(n * kRows));
          m.Multiply(x.data(), kCols, n, y.data(), kRows, false, *executor);
          ASSERT_TRUE(SameBits(y.data(), alone.data(), y.size()))
              << IsaName(level) << " n=" << n << " threads=" << executor->threads();
        }
      }
    }
  }
}

}  // namespace
}  // namespace baton
