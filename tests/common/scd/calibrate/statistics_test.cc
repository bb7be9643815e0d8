#include "common/scd/calibrate/statistics.h"

#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/executor.h"
#include "tests/common/scd/calibrate/random_rows.h"

namespace baton {
namespace {

constexpr std::int64_t kSumRows = 57;
constexpr std::int64_t kSourceWidth = 5;
constexpr std::int64_t kTargetWidth = 3;

// Rows with a mean far from zero, as keys have.
std::vector<float> Rows(std::int64_t width, std::uint32_t seed) {
  std::vector<float> rows = ToFloats(RandomMatrix(kSumRows, width, seed));
  for (std::size_t i = 0; i < rows.size(); ++i) rows[i] += 30.0f * static_cast<float>(i % 2);
  return rows;
}

// In two passes over the rows.
double Central(const std::vector<float>& x, std::int64_t p, std::int64_t i,
               const std::vector<float>& y, std::int64_t q, std::int64_t j) {
  double mx = 0, my = 0, sum = 0;
  for (std::int64_t r = 0; r < kSumRows; ++r) {
    mx += x[r * p + i] / static_cast<double>(kSumRows);
    my += y[r * q + j] / static_cast<double>(kSumRows);
  }
  for (std::int64_t r = 0; r < kSumRows; ++r) sum += (x[r * p + i] - mx) * (y[r * q + j] - my);
  return sum / static_cast<double>(kSumRows);
}

TEST(PairedSumsTest, MomentsAreThoseOfTheRowsHoweverTheyCame) {
  const std::vector<float> x = Rows(kSourceWidth, 1), y = Rows(kTargetWidth, 2),
                           other = Rows(kSourceWidth, 3);
  SerialExecutor serial;
  PairedSums sums(kSourceWidth, {kTargetWidth, kSourceWidth});
  for (std::int64_t at = 0; at < kSumRows;) {
    const std::int64_t n = std::min<std::int64_t>(kSumRows - at, 1 + at / 3);
    sums.Add(n, x.data() + at * kSourceWidth,
             {y.data() + at * kTargetWidth, other.data() + at * kSourceWidth}, serial);
    at += n;
  }
  EXPECT_EQ(sums.count(), kSumRows);
  const Moments m = sums.Finish(0);
  const Moments second = sums.Finish(1);
  EXPECT_EQ(m.count, kSumRows);
  // Sums of 57 squares up to about 1,100 in float64: rounding below 1e-10.
  for (std::int64_t i = 0; i < kSourceWidth; ++i) {
    for (std::int64_t j = 0; j < kSourceWidth; ++j) {
      EXPECT_NEAR(m.source.at(i, j), Central(x, kSourceWidth, i, x, kSourceWidth, j), 1e-10);
      EXPECT_NEAR(second.cross.at(i, j), Central(x, kSourceWidth, i, other, kSourceWidth, j),
                  1e-10);
    }
    for (std::int64_t j = 0; j < kTargetWidth; ++j) {
      EXPECT_NEAR(m.cross.at(i, j), Central(x, kSourceWidth, i, y, kTargetWidth, j), 1e-10);
    }
  }
  for (std::int64_t i = 0; i < kTargetWidth; ++i) {
    double mean = 0;
    for (std::int64_t r = 0; r < kSumRows; ++r) mean += y[r * kTargetWidth + i];
    EXPECT_NEAR(m.target_mean[i], mean / static_cast<double>(kSumRows), 1e-12);
    for (std::int64_t j = 0; j < kTargetWidth; ++j) {
      EXPECT_NEAR(m.target.at(i, j), Central(y, kTargetWidth, i, y, kTargetWidth, j), 1e-10);
    }
  }
}

TEST(PairedSumsTest, NothingAddedIsZero) {
  const Moments m = PairedSums(2, {3}).Finish(0);
  EXPECT_EQ(m.count, 0);
  EXPECT_EQ(m.source.values, std::vector<double>(4));
}

// Rows that say their own number.
std::vector<float> Numbered(std::int64_t from, std::int64_t to) {
  std::vector<float> rows;
  for (std::int64_t i = from; i < to; ++i) {
    rows.push_back(static_cast<float>(i));
    rows.push_back(-static_cast<float>(i));
  }
  return rows;
}

TEST(RowReservoirTest, KeepsAllUntilFullThenASampleOfTheSize) {
  RowReservoir reservoir(2, 100, 7);
  reservoir.Add(60, Numbered(0, 60).data());
  EXPECT_EQ(reservoir.values(), Numbered(0, 60));
  reservoir.Add(9940, Numbered(60, 10000).data());
  EXPECT_EQ(reservoir.size(), 100);
  std::set<float> different;
  double sum = 0;
  for (std::int64_t i = 0; i < 100; ++i) {
    const float number = reservoir.values()[2 * i];
    EXPECT_EQ(reservoir.values()[2 * i + 1], -number);
    different.insert(number);
    sum += number;
  }
  EXPECT_EQ(different.size(), 100U);
  // The mean of 100 of 0..9999 has a standard deviation of 289: four of them.
  EXPECT_NEAR(sum / 100, 4999.5, 4 * 289);
}

TEST(RowReservoirTest, SeedAndRowsDecide) {
  RowReservoir a(2, 10, 7), b(2, 10, 7), c(2, 10, 8);
  const std::vector<float> rows = Numbered(0, 500);
  a.Add(500, rows.data());
  b.Add(123, rows.data());
  b.Add(377, rows.data() + 246);
  c.Add(500, rows.data());
  EXPECT_EQ(a.values(), b.values());
  EXPECT_NE(a.values(), c.values());
}

}  // namespace
}  // namespace baton
