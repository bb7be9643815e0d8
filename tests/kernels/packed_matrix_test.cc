#include "kernels/packed_matrix.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "common/weights/dequantize.h"
#include "kernels/convert_math.h"
#include "kernels/quantize.h"
#include "tests/kernels/test_util.h"

namespace baton {
namespace {

// What Pack takes fp32 weights to.
constexpr WeightFormat kPackable[] = {WeightFormat::kF32, WeightFormat::kBF16, WeightFormat::kF16,
                                      WeightFormat::kQ8_0, WeightFormat::kQ4_1};

StoredDType StoredType(WeightFormat format) {
  constexpr StoredDType kTypes[kWeightFormats] = {
      StoredDType::kF32,  StoredDType::kBF16, StoredDType::kF16,  StoredDType::kQ8_0,
      StoredDType::kQ4_0, StoredDType::kQ4_1, StoredDType::kQ5_0, StoredDType::kQ5_1,
      StoredDType::kQ4_K, StoredDType::kQ5_K, StoredDType::kQ6_K};
  return kTypes[static_cast<int>(format)];
}

std::vector<float> Dequantised(WeightFormat format, const std::vector<std::byte>& stored,
                               std::int64_t n) {
  std::vector<float> out(static_cast<std::size_t>(n));
  EXPECT_TRUE(DequantizeRow(StoredType(format), stored.data(), out.data(), n).ok());
  return out;
}

// The values that fp32 weights have after Pack: by the rounding of the plain formats, by the blocks
// of quantize.h (which its own test compares with ggml's) as the reader of files decodes them.
std::vector<float> Rounded(const std::vector<float>& w, std::int64_t cols, WeightFormat format) {
  std::vector<float> out;
  for (std::size_t i = 0; i < w.size(); ++i) {
    switch (format) {
      case WeightFormat::kF32:
        out.push_back(w[i]);
        break;
      case WeightFormat::kBF16:
        out.push_back(Bf16ToFloat(FloatToBf16(w[i])));
        break;
      case WeightFormat::kF16:
        out.push_back(HalfToFloat(FloatToHalf(w[i])));
        break;
      default: {
        const std::int64_t k = static_cast<std::int64_t>(i) % cols;
        const int n = static_cast<int>(std::min<std::int64_t>(kQuantBlock, cols - k));
        std::vector<std::byte> stored(static_cast<std::size_t>(StoredBlockBytes(format)));
        if (format == WeightFormat::kQ8_0) {
          const BlockQ8_0 block = QuantizeInt8(&w[i], n);
          std::memcpy(stored.data(), &block, sizeof(block));
        } else {
          const BlockQ4_1 block = QuantizeInt4(&w[i], n);
          std::memcpy(stored.data(), &block, sizeof(block));
        }
        const auto values = Dequantised(format, stored, kQuantBlock);
        out.insert(out.end(), values.begin(), values.begin() + n);
        i += static_cast<std::size_t>(n - 1);
      }
    }
  }
  return out;
}

// Rows as a file stores them: any codes, finite scales of both signs.
std::vector<std::byte> RandomStored(WeightFormat format, std::int64_t rows, std::int64_t cols,
                                    unsigned seed) {
  std::mt19937 rng(seed);
  std::vector<std::byte> bytes(static_cast<std::size_t>(rows * StoredRowBytes(format, cols)));
  const auto half = [&](std::size_t at) {
    const float value = std::normal_distribution<float>(0, 0.1f)(rng);
    const std::uint16_t bits = FloatToHalf(value);
    std::memcpy(&bytes[at], &bits, sizeof(bits));
  };
  if (format == WeightFormat::kF32) {
    for (std::size_t i = 0; i < bytes.size(); i += 4) {
      const float value = std::normal_distribution<float>()(rng);
      std::memcpy(&bytes[i], &value, sizeof(value));
    }
    return bytes;
  }
  for (std::byte& b : bytes) b = static_cast<std::byte>(rng());
  const auto block = static_cast<std::size_t>(StoredBlockBytes(format));
  for (std::size_t at = 0; at < bytes.size(); at += block) {
    if (format == WeightFormat::kBF16) {
      const std::uint16_t bits = FloatToBf16(std::normal_distribution<float>()(rng));
      std::memcpy(&bytes[at], &bits, sizeof(bits));
      continue;
    }
    half(format == WeightFormat::kQ6_K ? at + block - 2 : at);
    const bool two = format == WeightFormat::kQ4_1 || format == WeightFormat::kQ5_1 ||
                     format == WeightFormat::kQ4_K || format == WeightFormat::kQ5_K;
    if (two) half(at + 2);
  }
  return bytes;
}

PackedMatrix PackStored(WeightFormat format, const std::vector<std::byte>& stored,
                        std::int64_t rows, std::int64_t cols) {
  PackedMatrixBuilder builder(rows, cols, format);
  const std::int64_t row_bytes = StoredRowBytes(format, cols);
  builder.PackStored(0, builder.panels(),
                     [&](std::int64_t begin, std::int64_t count, std::byte* dst) {
                       std::memcpy(dst, stored.data() + begin * row_bytes,
                                   static_cast<std::size_t>(count * row_bytes));
                     });
  return std::move(builder).Finish();
}

void ExpectProduct(std::int64_t n, std::int64_t rows, std::int64_t cols, WeightFormat format,
                   bool accumulate, Executor& executor) {
  SCOPED_TRACE(testing::Message() << n << "x" << cols << " * " << rows << " "
                                  << FormatName(format));
  const std::int64_t ldx = cols + 3, ldy = rows + 5;
  const auto w = RandomFloats(static_cast<std::size_t>(rows * cols), 1);
  const auto rounded = Rounded(w, cols, format);
  const auto x = RandomFloats(static_cast<std::size_t>(n * ldx), 2);
  auto y = RandomFloats(static_cast<std::size_t>(n * ldy), 3);
  const auto before = y;
  const PackedMatrix m = PackedMatrix::Pack(w.data(), rows, cols, format, executor);
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
                            rounded[static_cast<std::size_t>(j * cols + k)];
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
  for (WeightFormat format : kPackable) {
    const auto rounded = Rounded(w, cols, format);
    PackedMatrixBuilder builder(rows, cols, format);
    ASSERT_EQ(builder.panels(), 3);
    const auto read = [&](std::int64_t begin, std::int64_t count, float* dst) {
      ASSERT_LE(count, PackedMatrixBuilder::kPanelRows);
      std::copy_n(w.data() + begin * cols, count * cols, dst);
    };
    builder.Pack(1, 3, read);
    builder.Pack(0, 1, read);
    const PackedMatrix m = std::move(builder).Finish();
    ASSERT_EQ(m.rows(), rows);
    EXPECT_EQ(m.bytes(), static_cast<std::size_t>(96 * PackedRowBytes(format, cols)));
    std::vector<float> row(static_cast<std::size_t>(cols));
    for (std::int64_t r = 0; r < rows; ++r) {
      m.UnpackRow(r, row.data());
      for (std::int64_t k = 0; k < cols; ++k) {
        ASSERT_EQ(row[static_cast<std::size_t>(k)],
                  rounded[static_cast<std::size_t>(r * cols + k)]);
      }
    }
  }
}

TEST(PackedMatrix, WeakReferencesKeepNothingAlive) {
  SerialExecutor executor;
  const auto w = RandomFloats(64, 5);
  auto m = std::make_unique<PackedMatrix>(
      PackedMatrix::Pack(w.data(), 8, 8, WeightFormat::kF32, executor));
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
    for (WeightFormat format : kPackable) {
      for (std::int64_t n : {1, 2, 3, 4, 5, 7, 8, 11, 12, 13, 25, 37}) {
        ExpectProduct(n, 33, 17, format, false, *pool);
        ExpectProduct(n, 97, 40, format, true, *pool);
      }
      ExpectProduct(1, 1, 1, format, false, *pool);
      ExpectProduct(3, 32, 600, format, true, *pool);
      ExpectProduct(130, 65, 530, format, false, *pool);
    }
  }
}

// Enough rows and columns for several row blocks and several passes over the inner dimension.
TEST(PackedMatrix, EqualsFloat64OverSeveralBlocks) {
  auto pool = MakeThreadPool(2);
  ExpectProduct(600, 40, 1100, WeightFormat::kBF16, true, *pool);
}

TEST(PackedMatrix, EmptySizes) {
  SerialExecutor serial;
  const float w[4] = {1, 2, 3, 4};
  float y[2] = {7, 7};
  PackedMatrix::Pack(w, 2, 2, WeightFormat::kF32, serial).Multiply(w, 2, 0, y, 2, false, serial);
  EXPECT_EQ(y[0], 7);
  PackedMatrix().Multiply(w, 2, 1, y, 2, false, serial);
  EXPECT_EQ(y[0], 7);
  // An empty sum is zero.
  PackedMatrix::Pack(w, 2, 0, WeightFormat::kF32, serial).Multiply(w, 0, 1, y, 2, true, serial);
  EXPECT_EQ(y[0], 7);
  PackedMatrix::Pack(w, 2, 0, WeightFormat::kF32, serial).Multiply(w, 0, 1, y, 2, false, serial);
  EXPECT_EQ(y[1], 0);
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
  for (WeightFormat format : kPackable) {
    const PackedMatrix m = PackedMatrix::Pack(w.data(), kRows, kCols, format, serial);
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

// Every format as a file stores it gives the bits of its dequantised copy in fp32: rows one by one
// and products of any size, on every instruction set and number of threads, from x and to y at odd
// addresses.
TEST(PackedMatrix, StoredFormatsAreTheirDequantisedCopyToTheBit) {
  SerialExecutor serial;
  auto pool = MakeThreadPool(3);
  for (int f = 0; f < kWeightFormats; ++f) {
    const auto format = static_cast<WeightFormat>(f);
    const std::int64_t block = StoredBlockElements(format);
    const std::vector<std::int64_t> widths = block == 256 ? std::vector<std::int64_t>{256, 768}
                                             : block == 32
                                                 ? std::vector<std::int64_t>{32, 64, 96, 576}
                                                 : std::vector<std::int64_t>{1, 31, 100};
    for (const std::int64_t rows : {1, 31, 32, 33, 97, 200}) {
      for (const std::int64_t cols : widths) {
        SCOPED_TRACE(testing::Message() << FormatName(format) << " " << rows << "x" << cols);
        const auto stored = RandomStored(format, rows, cols, static_cast<unsigned>(rows + cols));
        const auto w = Dequantised(format, stored, rows * cols);
        const PackedMatrix m = PackStored(format, stored, rows, cols);
        EXPECT_EQ(m.bytes(),
                  static_cast<std::size_t>((rows + 31) / 32 * 32 * PackedRowBytes(format, cols)));
        std::vector<float> row(static_cast<std::size_t>(cols));
        for (std::int64_t r = 0; r < rows; ++r) {
          m.UnpackRow(r, row.data());
          ASSERT_TRUE(SameBits(row.data(), w.data() + r * cols, row.size())) << r;
        }
        const PackedMatrix copy =
            PackedMatrix::Pack(w.data(), rows, cols, WeightFormat::kF32, serial);
        const std::int64_t ldx = cols + 1, ldy = rows + 3;
        const auto x = RandomFloats(static_cast<std::size_t>(64 * ldx + 1), 7);
        for (const std::int64_t n : {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 64}) {
          const bool accumulate = n % 2 == 0;
          const auto before = RandomFloats(static_cast<std::size_t>(n * ldy + 1), 8);
          auto want = before;
          {
            ScopedIsa isa(IsaLevel::kGeneric);
            copy.Multiply(x.data() + 1, ldx, n, want.data() + 1, ldy, accumulate, serial);
          }
          for (const IsaLevel level : AvailableLevels()) {
            ScopedIsa isa(level);
            for (Executor* executor : {static_cast<Executor*>(&serial), pool.get()}) {
              auto y = before;
              m.Multiply(x.data() + 1, ldx, n, y.data() + 1, ldy, accumulate, *executor);
              ASSERT_TRUE(SameBits(y, want))
                  << IsaName(level) << " n=" << n << " threads=" << executor->threads();
            }
          }
        }
      }
    }
  }
}

// Parts below one another, each in a format of its own, are the product of each part.
TEST(PackedMatrix, SectionsAreTheirParts) {
  SerialExecutor serial;
  auto pool = MakeThreadPool(2);
  constexpr std::int64_t kCols = 256;
  const std::vector<PackedMatrix::Section> sections = {{40, WeightFormat::kQ4_K},
                                                       {0, WeightFormat::kF16},
                                                       {7, WeightFormat::kQ6_K},
                                                       {33, WeightFormat::kF32},
                                                       {96, WeightFormat::kQ4_K}};
  std::vector<std::vector<std::byte>> stored;
  std::vector<float> w;
  for (const auto& s : sections) {
    stored.push_back(RandomStored(s.format, s.rows, kCols, 9));
    const auto values = Dequantised(s.format, stored.back(), s.rows * kCols);
    w.insert(w.end(), values.begin(), values.end());
  }
  PackedMatrixBuilder builder(sections, kCols);
  ASSERT_EQ(builder.panels(), 2 + 1 + 2 + 3);
  const std::int64_t starts[] = {0, 40, 40, 47, 80};
  const std::size_t part_of[] = {0, 2, 3, 4};  // sections without rows are left out
  for (std::int64_t p = 0; p < builder.panels(); ++p) {
    const std::size_t part = part_of[builder.SectionOf(p)];
    const std::int64_t row_bytes = StoredRowBytes(sections[part].format, kCols);
    builder.PackStored(p, p + 1, [&](std::int64_t begin, std::int64_t count, std::byte* dst) {
      std::memcpy(dst, stored[part].data() + (begin - starts[part]) * row_bytes,
                  static_cast<std::size_t>(count * row_bytes));
    });
  }
  const PackedMatrix m = std::move(builder).Finish();
  const std::int64_t rows = m.rows();
  ASSERT_EQ(rows, 176);
  EXPECT_EQ(m.sections().size(), 4u);
  std::vector<float> row(kCols);
  for (std::int64_t r = 0; r < rows; ++r) {
    m.UnpackRow(r, row.data());
    ASSERT_TRUE(SameBits(row.data(), w.data() + r * kCols, row.size())) << r;
  }
  const PackedMatrix copy = PackedMatrix::Pack(w.data(), rows, kCols, WeightFormat::kF32, serial);
  const auto x = RandomFloats(40 * kCols, 10);
  for (const IsaLevel level : AvailableLevels()) {
    ScopedIsa isa(level);
    for (const std::int64_t n : {1, 3, 12, 40}) {
      std::vector<float> want(static_cast<std::size_t>(n * rows)), y(want.size());
      copy.Multiply(x.data(), kCols, n, want.data(), rows, false, serial);
      m.Multiply(x.data(), kCols, n, y.data(), rows, false, *pool);
      ASSERT_TRUE(SameBits(y, want)) << IsaName(level) << " n=" << n;
    }
  }
}

// The rows from one on, of a matrix whose parts have formats of their own: the same bits, nothing
// copied; only where a panel begins.
TEST(PackedMatrix, FromARowOnIsTheSameMatrix) {
  SerialExecutor executor;
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  constexpr std::int64_t kCols = 64;
  const std::vector<PackedMatrix::Section> sections = {
      {96, WeightFormat::kF32}, {40, WeightFormat::kBF16}, {50, WeightFormat::kQ8_0}};
  PackedMatrixBuilder builder(sections, kCols);
  builder.Pack(0, builder.panels(), [&](std::int64_t, std::int64_t count, float* dst) {
    for (std::int64_t i = 0; i < count * kCols; ++i) dst[i] = normal(random);
  });
  const PackedMatrix all = std::move(builder).Finish();
  std::vector<float> x(5 * kCols);
  for (float& v : x) v = normal(random);
  std::vector<float> want(5 * 186);
  all.Multiply(x.data(), kCols, 5, want.data(), 186, /*accumulate=*/false, executor);
  for (const std::int64_t row : {0, 32, 64, 96, 128, 136, 168, 186}) {
    const auto tail = all.From(row);
    ASSERT_TRUE(tail.has_value()) << row;
    ASSERT_EQ(tail->rows(), 186 - row);
    std::vector<float> got(static_cast<std::size_t>(5 * tail->rows()), -1.0f);
    tail->Multiply(x.data(), kCols, 5, got.data(), tail->rows(), /*accumulate=*/false, executor);
    for (std::int64_t r = 0; r < 5; ++r) {
      for (std::int64_t i = 0; i < tail->rows(); ++i) {
        ASSERT_EQ(got[r * tail->rows() + i], want[r * 186 + row + i]) << row << " " << i;
      }
    }
    std::vector<float> a(kCols), b(kCols);
    if (row == 186) continue;
    tail->UnpackRow(0, a.data());
    all.UnpackRow(row, b.data());
    EXPECT_EQ(a, b);
  }
  EXPECT_FALSE(all.From(5).has_value());
  EXPECT_FALSE(all.From(100).has_value());
}

}  // namespace
}  // namespace baton
