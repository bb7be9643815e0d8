#include "common/weights/digest.h"

#include <set>
#include <string>

#include "gtest/gtest.h"

namespace baton {
namespace {

std::string HashOf(const std::string& bytes, bool backwards = false) {
  PiecewiseHash hash(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
  for (std::size_t i = 0; i < hash.pieces(); ++i) {
    hash.Hash(backwards ? hash.pieces() - 1 - i : i);
  }
  return hash.Hex();
}

TEST(PiecewiseHashTest, EveryByteAndTheLengthCount) {
  std::string bytes(3 * PiecewiseHash::kPieceBytes + 17, 'x');
  const std::string hash = HashOf(bytes);
  EXPECT_EQ(hash.size(), 32u);
  EXPECT_EQ(HashOf(bytes, /*backwards=*/true), hash);
  std::set<std::string> others = {hash};
  for (const std::size_t at : {std::size_t{0}, PiecewiseHash::kPieceBytes - 1,
                               PiecewiseHash::kPieceBytes, bytes.size() - 1}) {
    bytes[at] = 'y';
    EXPECT_TRUE(others.insert(HashOf(bytes)).second) << at;
    bytes[at] = 'x';
  }
  EXPECT_TRUE(others.insert(HashOf(bytes + 'x')).second);
  bytes.pop_back();
  EXPECT_TRUE(others.insert(HashOf(bytes)).second);
  EXPECT_TRUE(others.insert(HashOf("")).second);
  EXPECT_TRUE(others.insert(HashOf(std::string(1, '\0'))).second);
}

TEST(PiecewiseHashTest, PiecesCoverTheBytes) {
  const std::string bytes(2 * PiecewiseHash::kPieceBytes, 'x');
  const PiecewiseHash hash(reinterpret_cast<const std::byte*>(bytes.data()), bytes.size());
  ASSERT_EQ(hash.pieces(), 2u);
  EXPECT_EQ(hash.piece(0).data(), bytes.data());
  EXPECT_EQ(hash.piece(1).data() + hash.piece(1).size(), bytes.data() + bytes.size());
}

}  // namespace
}  // namespace baton
