#include "common/prefix_hash/block_hash.h"

#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <unordered_set>

namespace baton {
namespace {

std::vector<int32_t> Iota(int n) {
  std::vector<int32_t> tokens(n);
  std::iota(tokens.begin(), tokens.end(), 0);
  return tokens;
}

// Expected values: python-xxhash 3 and hashlib over the bytes that the header describes.
TEST(BlockHashTest, MatchesReferenceXxh3) {
  const BlockHash seed = ChainSeed("tok", "global");
  EXPECT_EQ(seed.Hex(), "51f390fcce3d5bcd121c2f8055b87459");
  const auto hashes = ChainHashes(Iota(130), seed);
  ASSERT_EQ(hashes.size(), 2u);
  EXPECT_EQ(hashes[0].Hex(), "34ebaf98e43205f6d72ff29a37d48e2d");
  EXPECT_EQ(hashes[1].Hex(), "541eb6f55dfa6e14925dc7958c2fd99b");
}

TEST(BlockHashTest, MatchesReferenceSha256) {
  const BlockHash seed = ChainSeed("tok", "global", BlockHashAlgorithm::kSha256);
  EXPECT_EQ(seed.Hex(), "b260b941b6b866fad438aefbb5409c28");
  const auto hashes = ChainHashes(Iota(128), seed, BlockHashAlgorithm::kSha256);
  ASSERT_EQ(hashes.size(), 2u);
  EXPECT_EQ(hashes[0].Hex(), "ffe12ec1b75aa7cd60fc1a9bed579e26");
  EXPECT_EQ(hashes[1].Hex(), "a97a66047ab4fb8e068efa61f109f273");
}

TEST(BlockHashTest, OnlyFullBlocksCount) {
  const BlockHash seed = ChainSeed("t", "s");
  EXPECT_TRUE(ChainHashes({}, seed).empty());
  EXPECT_TRUE(ChainHashes(Iota(63), seed).empty());
  EXPECT_EQ(ChainHashes(Iota(64), seed).size(), 1u);
  EXPECT_EQ(ChainHashes(Iota(127), seed).size(), 1u);
}

TEST(BlockHashTest, ChainDependsOnEverythingBefore) {
  std::vector<int32_t> tokens = Iota(192);
  const BlockHash seed = ChainSeed("t", "s");
  const auto before = ChainHashes(tokens, seed);
  tokens[70] += 1;
  const auto after = ChainHashes(tokens, seed);
  EXPECT_EQ(before[0], after[0]);
  EXPECT_NE(before[1], after[1]);
  EXPECT_NE(before[2], after[2]);
}

// A tenant can't find another's blocks, and no two (tokenizer, scope) pairs share a seed by
// concatenation.
TEST(BlockHashTest, SeedsDiffer) {
  std::set<BlockHash> seeds = {
      ChainSeed("ab", "c"), ChainSeed("a", "bc"),
      ChainSeed("abc", ""), ChainSeed("", "abc"),
      ChainSeed("ab", "d"), ChainSeed("ab", "c", BlockHashAlgorithm::kSha256)};
  EXPECT_EQ(seeds.size(), 6u);
}

TEST(BlockHashTest, HexRoundTripAndErrors) {
  const BlockHash hash = ChainSeed("t", "s");
  const auto back = BlockHash::FromHex(hash.Hex());
  ASSERT_TRUE(back.ok());
  EXPECT_EQ(*back, hash);
  EXPECT_FALSE(BlockHash::FromHex("").ok());
  EXPECT_FALSE(BlockHash::FromHex(hash.Hex().substr(1)).ok());
  EXPECT_FALSE(BlockHash::FromHex(hash.Hex() + "00").ok());
  EXPECT_FALSE(BlockHash::FromHex("zz" + hash.Hex().substr(2)).ok());
  std::unordered_set<BlockHash> set = {hash, *back};
  EXPECT_EQ(set.size(), 1u);
}

TEST(ShareablePrefixTest, DefaultLeavesAtLeast64Tokens) {
  const std::pair<int64_t, int64_t> cases[] = {{0, 0},      {1, 0},      {64, 0},   {127, 0},
                                               {128, 64},   {129, 64},   {191, 64}, {192, 128},
                                               {1000, 896}, {2048, 1984}};
  for (const auto& [n, want] : cases) {
    EXPECT_EQ(ShareablePrefix(n, std::nullopt), want) << n;
    EXPECT_TRUE(want == 0 || n - want >= 64) << n;
  }
}

TEST(ShareablePrefixTest, AskedIsFlooredAndLeavesOneToken) {
  EXPECT_EQ(ShareablePrefix(1000, 500), 448);
  EXPECT_EQ(ShareablePrefix(1000, 64), 64);
  EXPECT_EQ(ShareablePrefix(1000, 63), 0);
  EXPECT_EQ(ShareablePrefix(1000, 0), 0);
  EXPECT_EQ(ShareablePrefix(1000, -5), 0);
  EXPECT_EQ(ShareablePrefix(1000, 1000), 960);
  EXPECT_EQ(ShareablePrefix(128, 128), 64);  // 128 would leave nothing to compute
  EXPECT_EQ(ShareablePrefix(129, 128), 128);
  EXPECT_EQ(ShareablePrefix(128, INT64_MAX), 64);
  EXPECT_EQ(ShareablePrefix(0, 10), 0);
}

TEST(ShareablePrefixTest, ForeignTokenEndsThePrefix) {
  std::vector<int32_t> tokens(1000, 5);
  EXPECT_EQ(ShareablePrefix(tokens, std::nullopt, 100), 896);
  tokens[200] = 100;  // first id outside [0, 100)
  EXPECT_EQ(ShareablePrefix(tokens, std::nullopt, 100), 192);
  EXPECT_EQ(ShareablePrefix(tokens, 128, 100), 128);
  EXPECT_EQ(ShareablePrefix(tokens, std::nullopt, 101), 896);
  tokens[10] = -1;
  EXPECT_EQ(ShareablePrefix(tokens, std::nullopt, 101), 0);
  tokens[10] = 5;
  tokens[950] = 100;  // in the part the consumer computes anyway
  EXPECT_EQ(ShareablePrefix(tokens, std::nullopt, 101), 896);
}

}  // namespace
}  // namespace baton
