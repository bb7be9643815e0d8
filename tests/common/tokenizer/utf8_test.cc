#include "common/tokenizer/utf8.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

std::string Repair(std::string_view bytes) {
  Utf8Repairer repairer;
  std::string out;
  repairer.Push(bytes, &out);
  repairer.Flush(&out);
  return out;
}

TEST(Utf8Test, ValidTextHasNoInvalidByte) {
  EXPECT_EQ(FirstInvalidUtf8(""), std::nullopt);
  EXPECT_EQ(FirstInvalidUtf8("plain ascii, long enough for a word"), std::nullopt);
  EXPECT_EQ(FirstInvalidUtf8("\u00e9\u4e16\U0001F30D\U0010FFFF\uFFFD"), std::nullopt);
}

TEST(Utf8Test, NamesTheFirstInvalidByte) {
  EXPECT_EQ(FirstInvalidUtf8("abc\xff"), 3u);
  EXPECT_EQ(FirstInvalidUtf8("abcdefgh\x80"), 8u);
  EXPECT_EQ(FirstInvalidUtf8("\xc3\xa9\xc3"), 2u);      // cut off
  EXPECT_EQ(FirstInvalidUtf8("\xc0\x80"), 0u);          // overlong
  EXPECT_EQ(FirstInvalidUtf8("\xe0\x80\x80"), 0u);      // overlong
  EXPECT_EQ(FirstInvalidUtf8("\xed\xa0\x80"), 0u);      // surrogate
  EXPECT_EQ(FirstInvalidUtf8("\xf4\x90\x80\x80"), 0u);  // above U+10FFFF
}

// Expected texts are Python's bytes.decode("utf-8", "replace").
TEST(Utf8Test, RepairReplacesEachMaximalPart) {
  EXPECT_EQ(Repair("a\xff\xfe"), "a\uFFFD\uFFFD");
  EXPECT_EQ(Repair("\xf0\x9f\x98"), "\uFFFD");
  EXPECT_EQ(Repair("\xf0\x9f\x98x"), "\uFFFDx");
  EXPECT_EQ(Repair("\xe0\x80\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(Repair("\xed\xa0\x80"), "\uFFFD\uFFFD\uFFFD");
  EXPECT_EQ(Repair("\xf0\x9f\xf0\x9f\x98\x80"), "\uFFFD\U0001F600");
}

TEST(Utf8Test, StripsUnicodeSpaceAsPython) {
  EXPECT_EQ(StripUnicodeSpace(" \t\n\u3000x y\u00a0\u2028"), "x y");
  EXPECT_EQ(StripUnicodeSpace("\u200bx"), "\u200bx");  // zero-width space is no space
  EXPECT_EQ(StripUnicodeSpace(" \n "), "");
}

}  // namespace
}  // namespace baton
