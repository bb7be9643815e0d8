#include "common/tokenizer/pre_tokenizer.h"

#include <string>
#include <vector>

#include "common/tokenizer/tokenizer_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using ::testing::ElementsAre;

std::vector<SplitStep> Steps(const std::vector<std::string>& patterns) {
  std::vector<SplitStep> steps(patterns.size());
  for (size_t i = 0; i < patterns.size(); ++i) steps[i].pattern = patterns[i];
  return steps;
}

std::vector<std::string> Split(const std::vector<std::string>& patterns, std::string_view text) {
  auto pre = PreTokenizer::Create(Steps(patterns));
  EXPECT_TRUE(pre.ok()) << pre.status();
  std::vector<std::string> words;
  EXPECT_TRUE(pre->Split(text, /*at_start=*/true,
                         [&](std::string_view word) {
                           words.emplace_back(word);
                           return absl::OkStatus();
                         })
                  .ok());
  return words;
}

TEST(PreTokenizerTest, Gpt2Pattern) {
  EXPECT_THAT(Split({std::string(kGpt2Pattern)}, "I'm here,  now  12x\n\n y"),
              ElementsAre("I", "'m", " here", ",", " ", " now", " ", " 12", "x", "\n\n", " y"));
}

TEST(PreTokenizerTest, LaterPatternsSplitThePiecesOfEarlierOnes) {
  EXPECT_THAT(Split({R"(\p{N})", std::string(kGpt2Pattern)}, "a 12b"),
              ElementsAre("a", " ", "1", "2", "b"));
}

TEST(PreTokenizerTest, TextBetweenMatchesStays) {
  EXPECT_THAT(Split({"[0-9][0-9][0-9]"}, "ab1234567c"), ElementsAre("ab", "123", "456", "7c"));
}

TEST(PreTokenizerTest, EmptyMatchesSplitAsInTokenizers) {
  EXPECT_THAT(Split({"x*"}, "\u4e16axx\u754c"), ElementsAre("\u4e16", "a", "xx", "\u754c"));
}

// With \K a match could begin where another has been already.
TEST(PreTokenizerTest, MatchesMoveForward) {
  for (const char* pattern : {R"(a(?=b\K))", R"(a\Kb)", R"(\\\K)"}) {
    EXPECT_EQ(PreTokenizer::Create(Steps({pattern})).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(Split({R"(\\K)"}, R"(a\Kb)"), ElementsAre("a", R"(\K)", "b"));
}

// U+180E is a format character since Unicode 6.3, not white space.
TEST(PreTokenizerTest, SpaceIsUnicodeWhiteSpace) {
  EXPECT_THAT(Split({R"(\s+)"}, "a\u180eb\u0085c\u3000d"),
              ElementsAre("a\u180eb", "\u0085", "c", "\u3000", "d"));
  EXPECT_THAT(Split({R"([^\s]+)"}, "a \u180eb"), ElementsAre("a", " ", "\u180eb"));
}

TEST(PreTokenizerTest, BadPatternIsNamed) {
  const auto pre = PreTokenizer::Create(Steps({"(unclosed"}));
  ASSERT_FALSE(pre.ok());
  EXPECT_THAT(std::string(pre.status().message()), ::testing::HasSubstr("(unclosed"));
}

// Catastrophic backtracking ends in an error, not in a hang.
TEST(PreTokenizerTest, MatchingIsBounded) {
  auto pre = PreTokenizer::Create(Steps({"(a+)+$"}));
  ASSERT_TRUE(pre.ok());
  const auto status = pre->Split(std::string(40, 'a') + "b", true,
                                 [](std::string_view) { return absl::OkStatus(); });
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
}

}  // namespace
}  // namespace baton
