#include "common/engine/prefix_stream.h"

#include <numeric>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr KvPageLayout kStreamLayout{.head_dim = 16, .dtype = DType::kF32};  // pages of 2112 bytes

std::shared_ptr<PagePool> StreamPool() { return *PagePool::Create(kStreamLayout, 64); }

TEST(PrefixStream, RowsComeBackWhateverTheirWidthIsToAPage) {
  // Many rows a page, a row of several pages, and rows that straddle them.
  for (const std::int64_t hidden : {16, 528, 529, 1500}) {
    const auto pool = StreamPool();
    constexpr std::int32_t kBegin = 4, kEnd = 16;
    const std::int64_t pages = PrefixStream::PagesFor(kEnd - kBegin, hidden, kStreamLayout);
    EXPECT_EQ(pages, (12 * hidden * 4 + 2111) / 2112);
    auto reservation = *pool->Reserve("test", pages);
    PrefixStream stream(kBegin, kEnd, hidden, kStreamLayout, reservation);
    EXPECT_EQ(reservation.remaining(), 0);
    EXPECT_EQ(pool->GetStats().held, pages);
    std::vector<float> rows(static_cast<std::size_t>(12 * hidden));
    std::iota(rows.begin(), rows.end(), 1.0f);
    // The later rows first: order is free.
    stream.Write(9, 7, rows.data() + 5 * hidden);
    stream.Write(4, 5, rows.data());
    std::vector<float> back(rows.size());
    stream.Read(4, 2, back.data());
    stream.Read(6, 10, back.data() + 2 * hidden);
    EXPECT_EQ(back, rows) << hidden;
  }
}

TEST(PrefixStream, GivesItsPagesBack) {
  const auto pool = StreamPool();
  {
    auto reservation = *pool->Reserve("test", 10);
    const PrefixStream stream(0, 16, 64, kStreamLayout, reservation);
    EXPECT_EQ(stream.pages(), 2);
    EXPECT_EQ(reservation.remaining(), 8);
  }
  EXPECT_EQ(pool->GetStats().free, 64);
}

}  // namespace
}  // namespace baton
