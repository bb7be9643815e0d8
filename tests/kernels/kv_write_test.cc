#include "kernels/kv_write.h"

#include <gtest/gtest.h>

#include <cstring>

#include "kernels/convert_math.h"
#include "tests/kernels/test_util.h"

namespace baton {
namespace {

TEST(KvPageLayout, SizesAndAlignment) {
  const KvPageLayout l{64, DType::kF32};
  EXPECT_EQ(l.k_offset(), 64u);
  EXPECT_EQ(l.v_offset(), 64u + 4096);
  EXPECT_EQ(l.page_bytes(), 64u + 8192);
  const KvPageLayout odd{8, DType::kBF16};
  EXPECT_EQ(odd.page_bytes() % 64, 0u);
  EXPECT_EQ(odd.payload_bytes(), 512u);
}

// Rows land where kv_page.h says: K transposed, V row major.
TEST(WriteKvRow, FollowsTheWrittenLayout) {
  const KvPageLayout l{24, DType::kF32};
  std::vector<std::byte> page(l.page_bytes());
  const auto k = RandomFloats(24, 1), v = RandomFloats(24, 2);
  WriteKvRow(l, page.data(), 5, k.data(), v.data(), 77);
  EXPECT_EQ(PagePositions(page.data())[5], 77);
  for (int d = 0; d < 24; ++d) {
    float got;
    std::memcpy(&got, page.data() + 64 + (d * 16 + 5) * 4, 4);
    EXPECT_EQ(got, k[static_cast<std::size_t>(d)]);
    std::memcpy(&got, page.data() + 64 + 24 * 16 * 4 + (5 * 24 + d) * 4, 4);
    EXPECT_EQ(got, v[static_cast<std::size_t>(d)]);
  }
}

TEST(WriteKvRow, RoundTripsEveryDtype) {
  for (DType dtype : kAllDTypes) {
    const KvPageLayout l{40, dtype};
    std::vector<std::byte> page(l.page_bytes());
    for (int row = 0; row < 16; ++row) {
      const auto k = RandomFloats(40, 10 + row), v = RandomFloats(40, 30 + row);
      WriteKvRow(l, page.data(), row, k.data(), v.data(), row);
    }
    for (int row = 0; row < 16; ++row) {
      const auto k = RandomFloats(40, 10 + row), v = RandomFloats(40, 30 + row);
      std::vector<float> gk(40), gv(40);
      ReadKvRow(l, page.data(), row, gk.data(), gv.data());
      for (std::size_t d = 0; d < 40; ++d) {
        const auto round = [&](float x) {
          return dtype == DType::kF32    ? x
                 : dtype == DType::kBF16 ? Bf16ToFloat(FloatToBf16(x))
                                         : HalfToFloat(FloatToHalf(x));
        };
        EXPECT_EQ(gk[d], round(k[d]));
        EXPECT_EQ(gv[d], round(v[d]));
      }
    }
  }
}

TEST(CopyKvRows, CopiesOnlyTheNamedRows) {
  for (DType dtype : kAllDTypes) {
    const KvPageLayout l{16, dtype};
    std::vector<std::byte> from(l.page_bytes()), to(l.page_bytes());
    const std::vector<float> zero(16, 0.0f);
    for (int row = 0; row < 16; ++row) {
      const auto k = RandomFloats(16, 50 + row), v = RandomFloats(16, 70 + row);
      WriteKvRow(l, from.data(), row, k.data(), v.data(), row);
    }
    for (const auto& [begin, end] : {std::pair{3, 9}, {0, 16}, {4, 4}, {0, 1}, {15, 16}}) {
      std::memset(to.data(), 0, to.size());
      CopyKvRows(l, from.data() + l.k_offset(), to.data(), begin, end);
      for (int row = 0; row < 16; ++row) {
        std::vector<float> wk(16), wv(16), gk(16), gv(16);
        ReadKvRow(l, from.data(), row, wk.data(), wv.data());
        ReadKvRow(l, to.data(), row, gk.data(), gv.data());
        const bool copied = row >= begin && row < end;
        EXPECT_EQ(gk, copied ? wk : zero);
        EXPECT_EQ(gv, copied ? wv : zero);
        EXPECT_EQ(PagePositions(to.data())[row], 0) << "positions stay";
      }
    }
  }
}

}  // namespace
}  // namespace baton
