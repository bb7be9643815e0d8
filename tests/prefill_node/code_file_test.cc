#include "prefill_node/code_file.h"

#include "common/base/ids.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

// By Python's struct and xxhash, after the table in the header: block 00..0f, space "s", codes
// 01 02 03 04.
constexpr char kCodeFileHex[] =
    "42544e42010001000400000000000000"
    "000102030405060708090a0b0c0d0e0f"
    "7301020304"
    "8438113c07d94e74";
constexpr char kCodeFileName[] =
    "000102030405060708090a0b0c0d0e0f-ddcb22b511c75a0ad6b9d4d14ff6be13.code";

class CodeFileTest : public testing::Test {
 protected:
  const BlockHash block_ = *BlockHash::FromHex("000102030405060708090a0b0c0d0e0f");
  const std::string codes_ = "\x01\x02\x03\x04";
  const std::string file_ = *HexDecode(kCodeFileHex);
};

TEST_F(CodeFileTest, HasTheBytesOfTheTable) {
  const auto* bytes = reinterpret_cast<const std::byte*>(codes_.data());
  EXPECT_EQ(HexEncode(EncodeCodeFile(block_, "s", {bytes, codes_.size()})), kCodeFileHex);
  EXPECT_EQ(CodeFileBytes("s", 4), file_.size());
  const auto parsed = ParseCodeFile(file_, block_, "s", 4);
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(*parsed, codes_);
}

TEST_F(CodeFileTest, NoChangedByteIsServed) {
  for (std::size_t i = 0; i < file_.size(); ++i) {
    std::string changed = file_;
    changed[i] = static_cast<char>(changed[i] ^ 0x10);
    EXPECT_EQ(ParseCodeFile(changed, block_, "s", 4).status().code(), absl::StatusCode::kDataLoss)
        << "byte " << i;
    EXPECT_FALSE(ParseCodeFile(file_.substr(0, i), block_, "s", 4).ok()) << i << " bytes";
  }
  EXPECT_FALSE(ParseCodeFile(file_ + "x", block_, "s", 4).ok());
}

TEST_F(CodeFileTest, IsForItsBlockAndSpaceOnly) {
  EXPECT_FALSE(ParseCodeFile(file_, BlockHash{}, "s", 4).ok());
  EXPECT_FALSE(ParseCodeFile(file_, block_, "t", 4).ok());
  EXPECT_FALSE(ParseCodeFile(file_, block_, "s", 5).ok());
  EXPECT_FALSE(ParseCodeFile(file_, block_, "s\x01", 3).ok()) << "the same length in all";
}

TEST_F(CodeFileTest, ItsNameSaysWhatItIsFor) {
  const CodeFileKey key = MakeCodeFileKey(block_, "s");
  EXPECT_EQ(CodeFileName(key), kCodeFileName);
  EXPECT_EQ(ParseCodeFileName(kCodeFileName), key);
  const std::string name = kCodeFileName;
  std::string upper = name;
  upper[10 + 1] = 'A';
  std::string dash = name;
  dash[32] = '_';
  for (const std::string& other : {std::string(), name + ".part", name.substr(1), upper, dash,
                                   std::string(name.size(), '-'), std::string(".lock")}) {
    EXPECT_EQ(ParseCodeFileName(other), std::nullopt) << other;
  }
}

}  // namespace
}  // namespace baton
