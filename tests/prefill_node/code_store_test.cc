#include "prefill_node/code_store.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

BlockHash Hash(std::uint8_t n) { return {{n}}; }
// 64 * `bits` / 8 bytes.
std::shared_ptr<const BlockCodes> Codes(std::uint8_t bits = 8) {
  return std::make_shared<const BlockCodes>(WholeCode({{{{bits}, {1.0f}}}}));
}

TEST(CodeStore, FindsWhatHasNoGap) {
  MetricRegistry metrics;
  CodeStore store(1000, metrics);
  const auto one = Codes();
  store.Put(Hash(1), "s", one);
  store.Put(Hash(3), "s", Codes());
  const std::vector<BlockHash> blocks = {Hash(1), Hash(2), Hash(3)};
  const auto found = store.Find(blocks, "s");
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0], one);
  EXPECT_TRUE(store.Find(blocks, "another space").empty());
  EXPECT_EQ(store.bytes(), 128);
}

TEST(CodeStore, TheFirstOfTwoStays) {
  MetricRegistry metrics;
  CodeStore store(1000, metrics);
  const auto first = Codes();
  store.Put(Hash(1), "s", first);
  store.Put(Hash(1), "s", Codes());
  EXPECT_EQ(store.Find(std::vector{Hash(1)}, "s")[0], first);
  EXPECT_EQ(store.bytes(), 64);
}

TEST(CodeStore, TheLongestUnusedMakesRoom) {
  MetricRegistry metrics;
  CodeStore store(3 * 64, metrics);
  for (std::uint8_t n : {1, 2, 3}) store.Put(Hash(n), "s", Codes());
  const auto held = store.Find(std::vector{Hash(1)}, "s");
  store.Put(Hash(4), "s", Codes());
  EXPECT_EQ(store.bytes(), 3 * 64);
  EXPECT_TRUE(store.Find(std::vector{Hash(2)}, "s").empty());
  EXPECT_EQ(store.Find(std::vector{Hash(1)}, "s"), held);
  // What is larger than the store leaves everything as it is.
  store.Put(
      Hash(5), "s",
      std::make_shared<const BlockCodes>(WholeCode({{{{8, 8, 8, 8}, {4.0f, 3.0f, 2.0f, 1.0f}}}})));
  EXPECT_EQ(store.bytes(), 3 * 64);
}

TEST(CodeStore, NoCapacityKeepsNothing) {
  MetricRegistry metrics;
  CodeStore store(0, metrics);
  store.Put(Hash(1), "s", Codes());
  EXPECT_EQ(store.bytes(), 0);
}

}  // namespace
}  // namespace baton
