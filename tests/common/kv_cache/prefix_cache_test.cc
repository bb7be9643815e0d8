#include "common/kv_cache/prefix_cache.h"

#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

constexpr KvPageLayout kCacheLayout{.head_dim = 8, .dtype = DType::kF32};
constexpr int kLayers = 2;
constexpr int kHeads = 2;
constexpr std::int64_t kPagesPerBlock = kLayers * kHeads * kBlockPages;

std::vector<BlockHash> Chain(std::uint8_t name, int blocks) {
  std::vector<BlockHash> chain(blocks);
  for (int i = 0; i < blocks; ++i) {
    chain[i].bytes[0] = name;
    chain[i].bytes[1] = static_cast<std::uint8_t>(i);
  }
  return chain;
}

class PrefixCacheTest : public ::testing::Test {
 protected:
  SequenceTable Fill(int blocks) {
    auto reservation = *pool_->Reserve("s", kPagesPerBlock * blocks);
    SequenceTable table(kLayers, kHeads);
    table.EnsureCapacity(blocks * kBlockTokens, reservation);
    return table;
  }
  void Insert(const std::vector<BlockHash>& chain, const std::string& space) {
    const SequenceTable table = Fill(static_cast<int>(chain.size()));
    for (std::size_t i = 0; i < chain.size(); ++i) {
      cache_.Insert(chain[i], space, static_cast<std::int32_t>(i),
                    PrefixCache::BlockPages(table, static_cast<std::int32_t>(i)));
    }
  }
  std::size_t Found(const std::vector<BlockHash>& chain, const std::string& exact,
                    const std::string& approx = "") {
    return cache_.Lookup(chain, exact, approx).size();
  }

  std::shared_ptr<PagePool> pool_ = *PagePool::Create(kCacheLayout, 64 * kPagesPerBlock);
  PrefixCache cache_{kLayers, kHeads};
};

TEST_F(PrefixCacheTest, KeysAreTextAndSpace) {
  Insert(Chain(1, 3), "exact-a");
  EXPECT_EQ(Found(Chain(1, 5), "exact-a"), 3u);
  EXPECT_EQ(Found(Chain(1, 2), "exact-a"), 2u);
  EXPECT_EQ(Found(Chain(1, 5), "exact-b"), 0u);
  EXPECT_EQ(Found(Chain(2, 5), "exact-a"), 0u);
  EXPECT_EQ(Found(Chain(1, 5), ""), 0u);
}

TEST_F(PrefixCacheTest, ExactIsPreferredAndApproximateMustBeAccepted) {
  Insert(Chain(1, 4), "approx");
  Insert(Chain(1, 2), "exact");
  EXPECT_EQ(Found(Chain(1, 4), "exact"), 2u);
  const auto blocks = cache_.Lookup(Chain(1, 4), "exact", "approx");
  ASSERT_EQ(blocks.size(), 4u);
  EXPECT_FALSE(blocks[0].approximate);
  EXPECT_FALSE(blocks[1].approximate);
  EXPECT_TRUE(blocks[2].approximate);
  EXPECT_TRUE(blocks[3].approximate);
}

TEST_F(PrefixCacheTest, AttachedBlocksAreTheSamePages) {
  SequenceTable table = Fill(2);
  const auto chain = Chain(1, 2);
  for (int i = 0; i < 2; ++i) {
    cache_.Insert(chain[i], "x", i, PrefixCache::BlockPages(table, i));
  }
  SequenceTable other(kLayers, kHeads);
  for (const auto& block : cache_.Lookup(chain, "x", "")) {
    PrefixCache::AttachBlock(*block.pages, other);
  }
  for (int layer = 0; layer < kLayers; ++layer) {
    for (int head = 0; head < kHeads; ++head) {
      EXPECT_EQ(other.num_rows(layer, head), 128);
      EXPECT_EQ(other.pages(layer, head), table.pages(layer, head));
    }
  }
  EXPECT_EQ(pool_->GetStats().held, 2 * kPagesPerBlock);  // shared pages are counted once
}

TEST_F(PrefixCacheTest, ASecondInsertKeepsTheFirst) {
  Insert(Chain(1, 1), "x");
  const auto* before = cache_.Lookup(Chain(1, 1), "x", "")[0].pages;
  Insert(Chain(1, 1), "x");
  EXPECT_EQ(cache_.Lookup(Chain(1, 1), "x", "")[0].pages, before);
  EXPECT_EQ(pool_->GetStats().held, kPagesPerBlock);
}

TEST_F(PrefixCacheTest, EvictsLeastRecentlyUsedChainFromItsEnd) {
  Insert(Chain(1, 3), "x");
  Insert(Chain(2, 3), "x");
  cache_.Touch(Chain(1, 3), "x", "");
  cache_.Touch(Chain(2, 3), "x", "");
  cache_.Touch(Chain(1, 2), "x", "");  // chain 1 is newer but for its last block
  EXPECT_EQ(cache_.EvictPages(1), kPagesPerBlock);
  EXPECT_EQ(Found(Chain(1, 3), "x"), 2u);
  EXPECT_EQ(Found(Chain(2, 3), "x"), 3u);
  EXPECT_EQ(cache_.EvictPages(2 * kPagesPerBlock), 2 * kPagesPerBlock);
  EXPECT_EQ(Found(Chain(1, 3), "x"), 2u);
  EXPECT_EQ(Found(Chain(2, 3), "x"), 1u);
}

TEST_F(PrefixCacheTest, PinnedBlocksStay) {
  Insert(Chain(1, 2), "x");
  // One page of one head of the last layer is enough.
  PageRef pin = cache_.Lookup(Chain(1, 1), "x", "")[0].pages->back();
  EXPECT_EQ(cache_.EvictablePages(1000), kPagesPerBlock);
  EXPECT_EQ(cache_.EvictPages(1000), kPagesPerBlock);
  EXPECT_EQ(cache_.EvictablePages(1000), 0);
  EXPECT_EQ(Found(Chain(1, 2), "x"), 1u);
  cache_.Clear();
  EXPECT_EQ(Found(Chain(1, 2), "x"), 1u);
  pin = PageRef();
  cache_.Clear();
  EXPECT_EQ(Found(Chain(1, 2), "x"), 0u);
  EXPECT_EQ(pool_->GetStats().held, 0);
}

// Whatever happens, the pool's held pages are the cache's plus those pinned from outside, eviction
// frees what it says, and a pinned block is never lost.
TEST_F(PrefixCacheTest, AccountingHoldsUnderRandomOperations) {
  std::mt19937 rng(7);
  struct Pin {
    SequenceTable table{kLayers, kHeads};
    std::vector<BlockHash> chain;
  };
  std::vector<Pin> pins;
  for (int step = 0; step < 3000; ++step) {
    const auto chain = Chain(static_cast<std::uint8_t>(rng() % 5), 1 + static_cast<int>(rng() % 6));
    switch (rng() % 5) {
      case 0: {
        const std::int64_t need = kPagesPerBlock * static_cast<std::int64_t>(chain.size());
        const auto before = pool_->GetStats();
        if (before.free < need) {
          const std::int64_t freed = cache_.EvictPages(need - before.free);
          EXPECT_EQ(pool_->GetStats().free, before.free + freed);
        }
        if (pool_->GetStats().free >= need) Insert(chain, rng() % 2 ? "x" : "y");
        break;
      }
      case 1: {
        Pin pin;
        for (const auto& block : cache_.Lookup(chain, "x", "")) {
          pin.chain.push_back(chain[pin.chain.size()]);
          PrefixCache::AttachBlock(*block.pages, pin.table);
        }
        if (!pin.chain.empty()) pins.push_back(std::move(pin));
        break;
      }
      case 2:
        if (!pins.empty()) {
          std::swap(pins[rng() % pins.size()], pins.back());
          pins.pop_back();
        }
        break;
      case 3:
        cache_.Touch(chain, "x", "y");
        break;
      case 4: {
        const std::int64_t before = pool_->GetStats().held;
        const std::int64_t freed = cache_.EvictPages(static_cast<std::int64_t>(rng() % 40));
        EXPECT_EQ(pool_->GetStats().held, before - freed);
        break;
      }
    }
    EXPECT_EQ(cache_.GetStats().pages, pool_->GetStats().held);
    for (const Pin& pin : pins) ASSERT_EQ(Found(pin.chain, "x"), pin.chain.size());
  }
  pins.clear();
  cache_.Clear();
  EXPECT_EQ(pool_->GetStats().held, 0);
}

}  // namespace
}  // namespace baton
