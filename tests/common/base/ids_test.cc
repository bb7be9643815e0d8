#include "common/base/ids.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "common/base/utf8.h"
#include "common/base/version.h"

namespace baton {
namespace {

TEST(IdsTest, RandomIdsDifferAndAreNotZero) {
  std::set<uint64_t> ids;
  for (int i = 0; i < 1000; ++i) ids.insert(RandomId64());
  EXPECT_EQ(ids.size(), 1000u);
  EXPECT_FALSE(ids.contains(0));
  EXPECT_NE(RandomBytes(16), RandomBytes(16));
  EXPECT_EQ(RandomBytes(0), "");
  EXPECT_EQ(RandomBytes(1000).size(), 1000u);
  EXPECT_EQ(NewRequestId().size(), 32u);
}

TEST(IdsTest, Hex) {
  const std::string bytes("\x00\x7f\x80\xff", 4);
  EXPECT_EQ(HexEncode(bytes), "007f80ff");
  EXPECT_EQ(*HexDecode("007f80ff"), bytes);
  EXPECT_EQ(*HexDecode("007F80fF"), bytes);
  EXPECT_EQ(*HexDecode(""), "");
  EXPECT_FALSE(HexDecode("0").ok());
  EXPECT_FALSE(HexDecode("0g").ok());
  EXPECT_FALSE(HexDecode("0x").ok());
  EXPECT_FALSE(HexDecode(" 0").ok());
  EXPECT_EQ(HexId(0x1122334455667788), "1122334455667788");
  EXPECT_EQ(HexId(1), "0000000000000001");
}

TEST(IdsTest, ConstantTimeEquals) {
  EXPECT_TRUE(ConstantTimeEquals("abc", "abc"));
  EXPECT_TRUE(ConstantTimeEquals("", ""));
  EXPECT_FALSE(ConstantTimeEquals("abc", "abd"));
  EXPECT_FALSE(ConstantTimeEquals("abc", "ab"));
}

// Examples of RFC 3629 and the Unicode standard's table 3-7.
TEST(Utf8Test, Validity) {
  for (const char* good : {"", "a", "\xC2\x80", "\xE0\xA0\x80", "\xED\x9F\xBF", "\xEE\x80\x80",
                           "\xF0\x90\x80\x80", "\xF4\x8F\xBF\xBF"}) {
    EXPECT_TRUE(IsValidUtf8(good));
  }
  for (const char* bad :
       {"\x80", "\xC0\x80", "\xC1\xBF", "\xC2", "\xE0\x80\x80", "\xED\xA0\x80", "\xE2\x82",
        "\xF0\x80\x80\x80", "\xF4\x90\x80\x80", "\xF5\x80\x80\x80", "\xFF", "a\xC2z"}) {
    EXPECT_FALSE(IsValidUtf8(bad));
  }
}

TEST(VersionTest, HasThreeNumbers) {
  const std::string version(Version());
  EXPECT_EQ(std::count(version.begin(), version.end(), '.'), 2);
  EXPECT_EQ(kProtocolVersion, 1u);
}

}  // namespace
}  // namespace baton
