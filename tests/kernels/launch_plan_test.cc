#include "kernels/launch_plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "kernels/kv_page.h"

namespace baton {
namespace {

// What one block may have on the smallest supported architectures (sm_86, sm_89 and sm_120).
constexpr std::size_t kSharedLimit = 99u * 1024;

TEST(LaunchPlan, RowsUseWholeWarps) {
  EXPECT_EQ(PlanRows(0, 64, 100).blocks, 0);
  EXPECT_EQ(PlanRows(64, 0, 100).blocks, 0);
  EXPECT_EQ(PlanRows(-1, 64, 100).blocks, 0);
  EXPECT_EQ(PlanRows(5, 64, 100).blocks, 5);
  EXPECT_EQ(PlanRows(5000, 64, 100).blocks, 100);
  EXPECT_EQ(PlanRows(std::int64_t{1} << 40, 64, 100).blocks, 100);
  for (std::int64_t cols : {1, 31, 128, 129, 576, 4096, 100000}) {
    const RowLaunch p = PlanRows(3, cols, 100);
    EXPECT_EQ(p.threads % 32, 0);
    EXPECT_GE(p.threads, 32);
    EXPECT_LE(p.threads, 256);
  }
}

TEST(LaunchPlan, ReduceCoversEveryColumnOnce) {
  EXPECT_EQ(PlanReduce(0, 100, 132).splits, 0);
  EXPECT_EQ(PlanReduce(3, 0, 132).splits, 0);
  EXPECT_EQ(PlanReduce(3, 0, 132).workspace_floats, 0u);
  for (std::int64_t rows : {1, 2, 33, 5000}) {
    for (std::int64_t cols : {1, 3, 4095, 4096, 4097, 32000, 49152, 128256, 262145}) {
      for (int sms : {1, 108, 132}) {
        const ReducePlan p = PlanReduce(rows, cols, sms);
        ASSERT_GE(p.splits, 1);
        ASSERT_LE(p.splits, 64);
        ASSERT_EQ(p.cols_per_split % 4, 0);
        ASSERT_GE(p.splits * p.cols_per_split, cols);
        ASSERT_LT((p.splits - 1) * p.cols_per_split, cols) << "an empty split";
        ASSERT_EQ(p.workspace_floats, static_cast<std::size_t>(rows * p.splits * 2));
      }
    }
  }
  EXPECT_GE(PlanReduce(1, 128256, 132).splits, 30);
  EXPECT_EQ(PlanReduce(1000, 128256, 132).splits, 1);
}

struct Model {
  int q_heads, kv_heads, head_dim;
};
constexpr Model kModels[] = {{32, 8, 128}, {9, 3, 64},   {64, 8, 128}, {16, 2, 256}, {1, 1, 8},
                             {14, 2, 64},  {32, 32, 80}, {71, 1, 64},  {71, 1, 256}, {24, 2, 128}};

// Each query of each task lies in exactly one tile, tiles keep within their task, and their rows
// fit the kernel that runs them.
void ExpectTilesCover(const AttentionPlan& p, const Model& m,
                      const std::vector<std::int32_t>& q_begin) {
  const int group = m.q_heads / m.kv_heads;
  std::vector<int> covered(static_cast<std::size_t>(q_begin.back()), 0);
  for (std::size_t i = 0; i < p.tiles.size(); ++i) {
    const AttentionTile& t = p.tiles[i];
    ASSERT_LT(t.q_begin, t.q_end);
    ASSERT_GE(t.q_begin, q_begin[static_cast<std::size_t>(t.task)]);
    ASSERT_LE(t.q_end, q_begin[static_cast<std::size_t>(t.task) + 1]);
    for (std::int32_t q = t.q_begin; q < t.q_end; ++q) ++covered[static_cast<std::size_t>(q)];
    const int queries = t.q_end - t.q_begin;
    if (i < static_cast<std::size_t>(p.split_tiles)) {
      ASSERT_LE(queries * std::min(group, kMaxSplitRows), p.split_rows);
    } else {
      ASSERT_LE(queries * group, p.tile_rows);
    }
  }
  for (int times : covered) ASSERT_EQ(times, 1);
}

void ExpectSplitsCover(const AttentionPlan& p, const Model& m, int max_pages) {
  ASSERT_GE(static_cast<std::int64_t>(p.splits) * p.pages_per_split, max_pages);
  ASSERT_TRUE(p.splits == 1 ||
              static_cast<std::int64_t>(p.splits - 1) * p.pages_per_split < max_pages);
  ASSERT_LE(p.splits, 64);
  ASSERT_LE(p.split_shared_bytes, kSharedLimit);
  // The last result the split kernel writes ends where the workspace does.
  const std::size_t results =
      static_cast<std::size_t>(p.split_tiles) * m.kv_heads * p.head_tiles * p.split_rows * p.splits;
  ASSERT_EQ(p.workspace_floats, p.splits == 1 ? 0 : results * (m.head_dim + 2u));
  // Head tiles cover a group once.
  const int group = m.q_heads / m.kv_heads;
  int heads = 0;
  for (int t = 0; t < p.head_tiles; ++t) {
    ASSERT_EQ(HeadsOfTile(group, t).first, heads);
    ASSERT_GE(HeadsOfTile(group, t).count, 1);
    heads += HeadsOfTile(group, t).count;
  }
  ASSERT_EQ(heads, group);
}

TEST(LaunchPlan, AttentionCoversEveryRowOnceWhateverTheBatch) {
  std::mt19937 rng(1);
  for (const Model& m : kModels) {
    for (int round = 0; round < 60; ++round) {
      std::vector<std::int32_t> q_begin = {0};
      const int tasks = static_cast<int>(rng() % 9);
      for (int t = 0; t < tasks; ++t) {
        const std::int32_t queries =
            static_cast<std::int32_t>(rng() % 3 == 0 ? rng() % 300 : rng() % 6);
        q_begin.push_back(q_begin.back() + queries);
      }
      const int max_pages = static_cast<int>(rng() % 2000);
      const int sms = round % 3 == 0 ? 1 : 132;
      const AttentionPlan p =
          PlanAttention({m.q_heads, m.kv_heads, m.head_dim, max_pages, sms}, q_begin.data(), tasks);
      ExpectTilesCover(p, m, q_begin);
      if (p.split_tiles > 0) ExpectSplitsCover(p, m, max_pages);
      if (p.split_tiles == 0) {
        EXPECT_EQ(p.workspace_floats, 0u);
      }
      EXPECT_LE(p.tile_shared_bytes, kSharedLimit);
    }
  }
}

TEST(LaunchPlan, AttentionWithoutWork) {
  const std::int32_t none[] = {0, 0, 0};
  const AttentionPlan p = PlanAttention({8, 2, 64, 0, 132}, none, 2);
  EXPECT_TRUE(p.tiles.empty());
  EXPECT_EQ(p.workspace_floats, 0u);
  EXPECT_TRUE(PlanAttention({8, 2, 64, 0, 132}, none, 0).tiles.empty());
  // A query without keys is written all the same.
  const std::int32_t one[] = {0, 1};
  const AttentionPlan empty = PlanAttention({8, 2, 64, 0, 132}, one, 1);
  EXPECT_EQ(empty.split_tiles, 1);
  EXPECT_EQ(empty.splits, 1);
}

TEST(LaunchPlan, DecodeFillsTheChip) {
  std::vector<std::int32_t> q_begin;
  for (std::int32_t i = 0; i <= 256; ++i) q_begin.push_back(i);
  const AttentionSizes sizes{32, 8, 128, 8192, 132};
  EXPECT_EQ(PlanAttention(sizes, q_begin.data(), 256).splits, 1);
  // One long sequence is cut until every multiprocessor has several blocks.
  const AttentionPlan one = PlanAttention(sizes, q_begin.data(), 1);
  EXPECT_GE(one.splits * 8, 4 * 120);
  // A short one is not: a split has at least 128 keys.
  EXPECT_EQ(PlanAttention({32, 8, 128, 8, 132}, q_begin.data(), 1).splits, 1);
  EXPECT_EQ(one.tiled_tiles(), 0);
}

// The plan of a batch bucket depends on limits, not on the contexts of the moment: same tiles, same
// grid, so a recorded graph stays valid.
TEST(LaunchPlan, PrefillStartsWithTheLastQueries) {
  const std::int32_t q_begin[] = {0, 200};
  const AttentionPlan p = PlanAttention({8, 2, 64, 13, 132}, q_begin, 1);
  ASSERT_EQ(p.split_tiles, 0);
  EXPECT_EQ(p.tiles.front().q_end, 200);
  EXPECT_EQ(p.tiles.back().q_begin, 0);
}

TEST(LaunchPlan, KeyMassCountsTilesPerSegment) {
  const std::int32_t rows[] = {64, 1, 0, 130}, offsets[] = {0, 2, 4};
  const KeyMassPlan p = PlanKeyMass(128, 2, rows, offsets);
  EXPECT_EQ(p.keys, 64);
  EXPECT_EQ(p.tiles, 3);  // head 1: none and three; head 0: one each
  EXPECT_EQ(PlanKeyMass(256, 2, rows, offsets).keys, 32);
  EXPECT_EQ(PlanKeyMass(256, 2, rows, offsets).tiles, 5);
  for (int head_dim : {8, 128, 136, 256}) {
    EXPECT_LE(PlanKeyMass(head_dim, 2, rows, offsets).shared_bytes, kSharedLimit);
  }
  const std::int32_t nothing[] = {0, 0, 0};
  EXPECT_EQ(PlanKeyMass(64, 2, rows, nothing).tiles, 0);
}

TEST(LaunchPlan, CodeProductCoversEveryFeature) {
  EXPECT_EQ(PlanCodeProduct(0, 100).blocks, 0);
  EXPECT_EQ(PlanCodeProduct(1, 0).blocks, 0);
  for (std::int64_t rows = 1; rows <= kMaxCodeProductRows; ++rows) {
    for (std::int64_t features : {1, 7, 8, 31, 32, 33, 4096, 128256}) {
      const CodeProductPlan p = PlanCodeProduct(rows, features);
      ASSERT_GE(p.rows, rows);
      ASSERT_LT(p.rows / 2, rows);
      const std::int64_t per_block = p.threads / 32 * p.features;
      ASSERT_GE(p.blocks * per_block, features);
      ASSERT_LT((p.blocks - 1) * per_block, features);
    }
  }
}

TEST(LaunchPlan, GraphBuckets) {
  EXPECT_EQ(GraphBuckets(1), (std::vector<int>{1}));
  EXPECT_EQ(GraphBuckets(5), (std::vector<int>{1, 2, 4, 5}));
  EXPECT_EQ(GraphBuckets(100), (std::vector<int>{1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 96, 100}));
  for (int most : {1, 2, 3, 8, 9, 63, 64, 65, 256, 1000}) {
    const std::vector<int> buckets = GraphBuckets(most);
    EXPECT_TRUE(std::is_sorted(buckets.begin(), buckets.end()));
    EXPECT_EQ(std::adjacent_find(buckets.begin(), buckets.end()), buckets.end());
    for (int batch = 1; batch <= most; ++batch) {
      const int bucket = BucketFor(buckets, batch);
      ASSERT_GE(bucket, batch);
      // Padding at most doubles a small batch and adds 31 to a large one.
      ASSERT_LE(bucket, std::max(2 * batch, 1));
      ASSERT_LE(bucket - batch, 31);
    }
    EXPECT_EQ(BucketFor(buckets, most + 1), 0);
  }
}

}  // namespace
}  // namespace baton
