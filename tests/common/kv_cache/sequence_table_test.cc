#include "common/kv_cache/sequence_table.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr KvPageLayout kTableLayout{.head_dim = 8, .dtype = DType::kF32};

TEST(SequenceTable, GrowsAtPageBoundaries) {
  auto pool = *PagePool::Create(kTableLayout, 100);
  auto reservation = *pool->Reserve("s", 100);
  SequenceTable table(3, 2);
  EXPECT_EQ(table.PagesMissingFor(0), 0);
  EXPECT_EQ(table.PagesMissingFor(1), 6);
  EXPECT_EQ(table.PagesMissingFor(16), 6);
  EXPECT_EQ(table.PagesMissingFor(17), 12);
  EXPECT_EQ(SequenceTable::PagesFor(17, 3, 2), 12);
  table.EnsureCapacity(17, reservation);
  EXPECT_EQ(table.total_pages(), 12);
  EXPECT_EQ(reservation.remaining(), 88);
  EXPECT_EQ(table.PagesMissingFor(32), 0);
  EXPECT_EQ(table.PagesMissingFor(33), 6);
  table.EnsureCapacity(5, reservation);
  EXPECT_EQ(table.total_pages(), 12);
}

TEST(SequenceTable, TablesHaveTheirOwnLengths) {
  auto pool = *PagePool::Create(kTableLayout, 100);
  auto reservation = *pool->Reserve("s", 100);
  SequenceTable table(2, 2);
  table.EnsureCapacity(48, reservation);
  table.set_num_rows(1, 0, 40);
  table.set_num_rows(0, 1, 10);
  table.Truncate(1, 0, 1);
  EXPECT_EQ(table.num_rows(1, 0), 16);
  EXPECT_EQ(table.num_rows(0, 1), 10);
  EXPECT_EQ(table.pages(1, 0).size(), 1u);
  EXPECT_EQ(table.pages(1, 1).size(), 3u);
  EXPECT_EQ(table.PagesMissingFor(48), 2);
  table.EnsureCapacity(48, reservation);
  EXPECT_EQ(table.total_pages(), 12);
  for (int layer = 0; layer < 2; ++layer) {
    for (int head = 0; head < 2; ++head) {
      for (std::size_t i = 0; i < 3; ++i) {
        EXPECT_EQ(table.pages(layer, head)[i], table.page(layer, head, i));
        EXPECT_EQ(table.refs(layer, head)[i].use_count(), 1u);
      }
    }
  }
  table.Clear();
  EXPECT_EQ(table.total_pages(), 0);
  EXPECT_EQ(table.num_rows(0, 1), 0);
  EXPECT_EQ(pool->GetStats().held, 0);
}

}  // namespace
}  // namespace baton
