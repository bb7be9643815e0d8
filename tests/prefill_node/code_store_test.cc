#include "prefill_node/code_store.h"

#include <filesystem>
#include <thread>

#include "gtest/gtest.h"
#include "tests/prefill_node/made_codes.h"
#include "tests/support/temp_dir.h"

namespace baton {
namespace {

TEST(CodeStore, FindsWhatHasNoGap) {
  MetricRegistry metrics;
  CodeStore store(1000, metrics);
  const auto one = MadeCodes();
  store.Put(MadeBlock(1), "s", one);
  store.Put(MadeBlock(3), "s", MadeCodes());
  const std::vector<BlockHash> blocks = {MadeBlock(1), MadeBlock(2), MadeBlock(3)};
  const auto found = store.Find(blocks, "s", MadeCut());
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0], one);
  EXPECT_TRUE(store.Find(blocks, "another space", MadeCut()).empty());
  EXPECT_EQ(store.bytes(), 128);
}

TEST(CodeStore, TheFirstOfTwoStays) {
  MetricRegistry metrics;
  CodeStore store(1000, metrics);
  const auto first = MadeCodes();
  store.Put(MadeBlock(1), "s", first);
  store.Put(MadeBlock(1), "s", MadeCodes());
  EXPECT_EQ(store.Find(std::vector{MadeBlock(1)}, "s", MadeCut())[0], first);
  EXPECT_EQ(store.bytes(), 64);
}

TEST(CodeStore, TheLongestUnusedMakesRoom) {
  MetricRegistry metrics;
  CodeStore store(3 * 64, metrics);
  for (std::uint8_t n : {1, 2, 3}) store.Put(MadeBlock(n), "s", MadeCodes());
  const auto held = store.Find(std::vector{MadeBlock(1)}, "s", MadeCut());
  store.Put(MadeBlock(4), "s", MadeCodes());
  EXPECT_EQ(store.bytes(), 3 * 64);
  EXPECT_TRUE(store.Find(std::vector{MadeBlock(2)}, "s", MadeCut()).empty());
  EXPECT_EQ(store.Find(std::vector{MadeBlock(1)}, "s", MadeCut()), held);
  // What is larger than the store leaves everything as it is.
  store.Put(
      MadeBlock(5), "s",
      std::make_shared<const BlockCodes>(WholeCode({{{{8, 8, 8, 8}, {4.0f, 3.0f, 2.0f, 1.0f}}}})));
  EXPECT_EQ(store.bytes(), 3 * 64);
}

TEST(CodeStore, NoCapacityKeepsNothing) {
  MetricRegistry metrics;
  CodeStore store(0, metrics);
  store.Put(MadeBlock(1), "s", MadeCodes());
  EXPECT_EQ(store.bytes(), 0);
}

// A store with room for three blocks in memory, and for `files` of them in a folder.
class SpillingStoreTest : public testing::Test {
 protected:
  void Open(std::int64_t files = 100) {
    store_.reset();  // the folder is one store's
    metrics_ = MetricRegistry();
    auto spill = CodeSpill::Open({dir_.File("codes"), files * kMadeFileBytes}, metrics_);
    ASSERT_TRUE(spill.ok()) << spill.status();
    store_ = std::make_unique<CodeStore>(3 * 64, metrics_, *std::move(spill));
  }
  void PutBlocks(std::uint8_t from, std::uint8_t to) {
    for (std::uint8_t n = from; n <= to; ++n) store_->Put(MadeBlock(n), "s", MadeCodes(n));
  }
  // How many of the blocks are found without a gap; each must be what was put there.
  std::size_t CountFound(std::uint8_t from, std::uint8_t to) {
    std::vector<BlockHash> blocks;
    for (std::uint8_t n = from; n <= to; ++n) blocks.push_back(MadeBlock(n));
    const auto found = store_->Find(blocks, "s", MadeCut());
    for (std::size_t i = 0; i < found.size(); ++i) {
      EXPECT_TRUE(AllAre(*found[i], static_cast<std::uint8_t>(from + i)));
    }
    return found.size();
  }
  double Hits(const std::string& of) {
    return metrics_.AddCounter("baton_" + of + "_hits_tokens_total", "").Value();
  }

  const TempDir dir_;
  MetricRegistry metrics_;
  std::unique_ptr<CodeStore> store_;
};

TEST_F(SpillingStoreTest, WhatMemoryHasNoRoomForIsFound) {
  Open();
  PutBlocks(1, 10);
  EXPECT_EQ(store_->bytes(), 3 * 64);
  EXPECT_EQ(CountFound(1, 12), 10u);
  EXPECT_EQ(store_->bytes(), 3 * 64);
  EXPECT_EQ(Hits("code_store"), 10 * 64);
  EXPECT_EQ(Hits("code_spill"), 10 * 64);  // the first ones pushed the last ones out
  // What came back is in memory.
  EXPECT_EQ(CountFound(8, 10), 3u);
  EXPECT_EQ(Hits("code_spill"), 10 * 64);
  EXPECT_TRUE(store_->Find(std::vector{MadeBlock(1)}, "another space", MadeCut()).empty());
}

TEST_F(SpillingStoreTest, MemoryAndFilesTakeTurns) {
  Open();
  PutBlocks(1, 4);                  // 1 goes to a file
  EXPECT_EQ(CountFound(1, 1), 1u);  // 2 goes
  EXPECT_EQ(CountFound(1, 4), 4u);
}

TEST_F(SpillingStoreTest, ANewStoreFindsWhatTheOldOneSpilled) {
  Open();
  PutBlocks(1, 10);
  Open();
  EXPECT_EQ(store_->bytes(), 0);
  EXPECT_EQ(CountFound(1, 10), 7u);
  EXPECT_EQ(Hits("code_spill"), 7 * 64);
}

TEST_F(SpillingStoreTest, AThreadPutsWhileOthersLook) {
  Open(20);
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([this, t] {
      for (int i = 0; i < 60; ++i) {
        const auto from = static_cast<std::uint8_t>((i * 7 + t * 50) % 100 + 1);
        PutBlocks(from, static_cast<std::uint8_t>(from + 5));
        CountFound(from, static_cast<std::uint8_t>(from + 5));
        EXPECT_LE(store_->bytes(), 3 * 64);
      }
    });
  }
  for (std::thread& t : threads) t.join();
  store_.reset();
  std::uintmax_t bytes = 0;
  for (const auto& file : std::filesystem::directory_iterator(dir_.File("codes"))) {
    bytes += file.file_size();
  }
  EXPECT_LE(bytes, 20u * kMadeFileBytes);
}

}  // namespace
}  // namespace baton
