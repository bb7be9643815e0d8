#include "router/gateway/prompt_echo.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace baton {
namespace {

using testing::ElementsAre;

std::vector<int64_t> Offsets(PromptEcho& echo, const std::vector<std::string>& tokens) {
  std::vector<int64_t> offsets;
  for (const std::string& token : tokens) offsets.push_back(echo.Next(token));
  return offsets;
}

TEST(PromptEchoTest, OffsetsAreCharactersOfTheText) {
  PromptEcho echo("h\xc3\xa9llo you");
  EXPECT_THAT(Offsets(echo, {"h\xc3\xa9", "llo", " you"}), ElementsAre(0, 2, 5));
  EXPECT_EQ(echo.characters(), 9);
  EXPECT_EQ(echo.TakeText(), "h\xc3\xa9llo you");
  EXPECT_EQ(echo.TakeText(), "");
}

TEST(PromptEchoTest, WhatTheTextDoesNotShowHasNoWidth) {
  PromptEcho bos("The end");
  EXPECT_THAT(Offsets(bos, {"<s>", "The", " end"}), ElementsAre(0, 0, 3));
  PromptEcho space("The end");  // SentencePiece puts a space in front
  EXPECT_THAT(Offsets(space, {"<s>", " The", " end"}), ElementsAre(0, 0, 3));
  PromptEcho only_space("The");
  EXPECT_THAT(Offsets(only_space, {" ", "The"}), ElementsAre(0, 0));
}

TEST(PromptEchoTest, TokensInsideACharacterStandAtIt) {
  PromptEcho text("a\xf0\x9f\x98\x8a!");
  EXPECT_THAT(Offsets(text, {"a", "\xf0\x9f", "\x98", "\x8a", "!"}), ElementsAre(0, 1, 1, 1, 2));
  PromptEcho ids(std::nullopt);
  EXPECT_THAT(Offsets(ids, {"a", "\xf0\x9f", "\x98", "\x8a", "!"}), ElementsAre(0, 1, 1, 1, 2));
  EXPECT_EQ(ids.TakeText(), "a\xf0\x9f\x98\x8a!");
  TokenOffsets generated(7);
  EXPECT_EQ(generated.Next("\xf0\x9f"), 7);
  EXPECT_EQ(generated.Next("\x98\x8a"), 7);
  EXPECT_EQ(generated.Next("x"), 8);
}

TEST(PromptEchoTest, TextOfTokensComesInWholeCharacters) {
  PromptEcho ids(std::nullopt);
  ids.Next("a\xf0\x9f");
  EXPECT_EQ(ids.TakeText(), "a");
  ids.Finish();
  EXPECT_EQ(ids.TakeText(), "\xef\xbf\xbd");
  EXPECT_EQ(ids.characters(), 2);
}

// A tokenizer that normalises its text must not throw the offsets out of the text.
TEST(PromptEchoTest, OffsetsStayInsideTheText) {
  PromptEcho echo("abc");
  for (const int64_t offset : Offsets(echo, {"ab", "XYZ", "Q", "R"})) {
    EXPECT_GE(offset, 0);
    EXPECT_LE(offset, 3);
  }
}

}  // namespace
}  // namespace baton
