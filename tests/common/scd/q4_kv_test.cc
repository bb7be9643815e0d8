#include "common/scd/q4_kv.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/kv_write.h"

namespace baton {
namespace {

using Rows = std::vector<std::vector<float>>;  // [row][channel]

// Pages that hold 32 rows, and what is read back from them (the dtype's own rounding).
struct Group {
  Group(const KvPageLayout& page_layout, const Rows& k, const Rows& v) : layout(page_layout) {
    for (auto& page : pages) page.resize(layout.page_bytes());
    for (int r = 0; r < kQ4GroupRows; ++r) {
      WriteKvRow(layout, pages[r / kPageRows].data(), r % kPageRows, k[r].data(), v[r].data(), r);
    }
    Read(pages, keys, values);
  }

  void Code(int first_row) {
    std::vector<std::byte> k(Q4KeyBytes(layout.head_dim)), v(Q4ValueBytes(layout.head_dim));
    EncodeQ4(layout, pages[0].data(), pages[1].data(), first_row, k.data(), v.data());
    std::vector<std::byte> decoded[2];
    for (int half = 0; half < 2; ++half) {
      decoded[half].resize(layout.page_bytes());
      DecodeQ4(layout, k.data(), v.data(), half, decoded[half].data() + layout.k_offset());
    }
    Read(decoded, decoded_keys, decoded_values);
    key_codes = k;
    value_codes = v;
  }

  void Read(const std::vector<std::byte> (&from)[2], Rows& k, Rows& v) const {
    k.assign(kQ4GroupRows, std::vector<float>(static_cast<std::size_t>(layout.head_dim)));
    v = k;
    for (int r = 0; r < kQ4GroupRows; ++r) {
      ReadKvRow(layout, from[r / kPageRows].data(), r % kPageRows, k[r].data(), v[r].data());
    }
  }

  KvPageLayout layout;
  std::vector<std::byte> pages[2];
  Rows keys, values, decoded_keys, decoded_values;
  std::vector<std::byte> key_codes, value_codes;
};

Rows Random(int head_dim, unsigned seed, float scale) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0, scale);
  Rows rows(kQ4GroupRows, std::vector<float>(static_cast<std::size_t>(head_dim)));
  for (auto& row : rows) {
    for (float& x : row) x = normal(rng);
  }
  return rows;
}

double DtypeError(DType dtype, double x) {
  if (dtype == DType::kF32) return std::fabs(x) * 0x1p-22;
  return std::fabs(x) * (dtype == DType::kBF16 ? 0x1p-8 : 0x1p-11);
}

// The header's bound, and the rounding of the layout's dtype.
double Bound(DType dtype, double min, double max) {
  const double d = (max - min) / 15;
  return d / 2 + (15 * d + std::fabs(min)) * 0x1p-11 +
         DtypeError(dtype, std::max(std::fabs(min), std::fabs(max)));
}

TEST(Q4KvTest, ErrorsStayWithinHalfAStep) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    for (const int head_dim : {8, 64, 72, 128, 256}) {
      Group g({head_dim, dtype}, Random(head_dim, 1, 3), Random(head_dim, 2, 0.5f));
      g.Code(0);
      for (int c = 0; c < head_dim; ++c) {
        double min = g.keys[0][c], max = min;
        for (int r = 0; r < kQ4GroupRows; ++r) {
          min = std::min<double>(min, g.keys[r][c]);
          max = std::max<double>(max, g.keys[r][c]);
        }
        for (int r = 0; r < kQ4GroupRows; ++r) {
          ASSERT_NEAR(g.decoded_keys[r][c], g.keys[r][c], Bound(dtype, min, max))
              << DTypeName(dtype) << " row " << r << " channel " << c;
        }
      }
      for (int r = 0; r < kQ4GroupRows; ++r) {
        const auto [min, max] = std::minmax_element(g.values[r].begin(), g.values[r].end());
        for (int c = 0; c < head_dim; ++c) {
          ASSERT_NEAR(g.decoded_values[r][c], g.values[r][c], Bound(dtype, *min, *max))
              << DTypeName(dtype) << " row " << r << " channel " << c;
        }
      }
    }
  }
}

// Multiples of a power of two need no rounding: codes and places are right to the bit.
TEST(Q4KvTest, SixteenLevelsComeBackExactly) {
  constexpr int kHeadDim = 64;
  Rows k(kQ4GroupRows, std::vector<float>(kHeadDim)), v = k;
  for (int r = 0; r < kQ4GroupRows; ++r) {
    for (int c = 0; c < kHeadDim; ++c) {
      k[r][c] = 0.25f * static_cast<float>((r + c) % 16) - static_cast<float>(c);
      v[r][c] = 0.5f * static_cast<float>((r + 3 * c) % 16) - static_cast<float>(r);
    }
  }
  Group g({kHeadDim, DType::kF32}, k, v);
  g.Code(0);
  EXPECT_EQ(g.decoded_keys, g.keys);
  EXPECT_EQ(g.decoded_values, g.values);
  // As q4_kv.h lays them out: channel 0's keys of rows 1 and 17, row 0's values 1 and 33.
  EXPECT_EQ(g.key_codes[4 * kHeadDim + 1], std::byte{0x11});
  EXPECT_EQ(g.value_codes[4 * kQ4GroupRows + 1], std::byte{0x33});
  const std::uint16_t quarter = 0x3400;
  EXPECT_EQ(std::memcmp(g.key_codes.data(), &quarter, 2), 0);
}

TEST(Q4KvTest, FirstTokensHaveNoSayInTheKeysScales) {
  Rows k = Random(64, 3, 1);
  for (int r = 0; r < 4; ++r) {
    for (float& x : k[r]) x *= 1000;
  }
  Group g({64, DType::kF32}, k, Random(64, 4, 1));
  g.Code(4);
  double worst = 0;
  for (int r = 4; r < kQ4GroupRows; ++r) {
    for (int c = 0; c < 64; ++c) {
      worst = std::max<double>(worst, std::fabs(g.decoded_keys[r][c] - g.keys[r][c]));
    }
  }
  EXPECT_LT(worst, 0.25);
  g.Code(0);
  EXPECT_GT(std::fabs(g.decoded_keys[4][0] - g.keys[4][0]), 0);
}

TEST(Q4KvTest, EqualValuesAndHugeOnesStayFinite) {
  Rows k(kQ4GroupRows, std::vector<float>(8, -2.5f)), v = k;
  for (auto& row : v) row[3] = 3e38f;
  Group g({8, DType::kF32}, k, v);
  g.Code(0);
  EXPECT_EQ(g.decoded_keys, g.keys);
  for (const auto& row : g.decoded_values) {
    for (const float x : row) EXPECT_TRUE(std::isfinite(x)) << x;
  }
}

}  // namespace
}  // namespace baton
