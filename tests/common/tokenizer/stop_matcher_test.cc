// Cases str-01, str-02 and api-01 of the shared evaluation data, and a brute-force comparison.
#include "common/tokenizer/stop_matcher.h"

#include <random>

#include "common/tokenizer/detokenizer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/test_data.h"

namespace baton {
namespace {

using ::testing::HasSubstr;

struct Outcome {
  std::string text;
  std::optional<size_t> matched;
  size_t pushes = 0;  // until the match
};

Outcome Stream(std::vector<std::string> stops, const std::vector<std::string>& chunks) {
  auto matcher = StopMatcher::Create(std::move(stops));
  EXPECT_TRUE(matcher.ok()) << matcher.status();
  Outcome outcome;
  for (const std::string& chunk : chunks) {
    ++outcome.pushes;
    const auto result = matcher->Push(chunk);
    outcome.text += result.emit;
    if (result.matched.has_value()) {
      outcome.matched = result.matched;
      return outcome;
    }
  }
  const auto rest = matcher->Flush();
  outcome.text += rest.emit;
  outcome.matched = rest.matched;
  return outcome;
}

const std::vector<std::string> kChunks = {" ABC", "DEF", "GH", "I", "J", "K"};

TEST(StopMatcherTest, NothingOfAStopOverFiveTokensLeaks) {
  const Outcome hit = Stream({"DEFGHIJ"}, kChunks);
  EXPECT_EQ(hit.text, " ABC");
  EXPECT_EQ(hit.matched, 0u);
  EXPECT_EQ(hit.pushes, 5u);  // "K" is never needed
  const Outcome miss = Stream({"DEFGHIX"}, kChunks);
  EXPECT_EQ(miss.text, " ABCDEFGHIJK");
  EXPECT_EQ(miss.matched, std::nullopt);
}

TEST(StopMatcherTest, StopInsideAToken) {
  EXPECT_EQ(Stream({"DE"}, kChunks).text, " ABC");
  EXPECT_EQ(Stream({"EF"}, kChunks).text, " ABCD");
  EXPECT_EQ(Stream({"HI"}, kChunks).text, " ABCDEFG");
  const Outcome several = Stream({"HI", "EF", "K"}, kChunks);
  EXPECT_EQ(several.text, " ABCD");
  EXPECT_EQ(several.matched, 1u);
}

TEST(StopMatcherTest, TheForcedTokensOfTheCases) {
  const std::string path = SharedDataDir() + "/tokenizers/smollm2_tokenizer.json";
  BATON_SKIP_WITHOUT(path);
  const auto tokenizer = Tokenizer::FromJson(ReadFileOrEmpty(path));
  ASSERT_TRUE(tokenizer.ok());
  Detokenizer detokenizer(**tokenizer);
  std::vector<std::string> chunks;
  for (int32_t id : {17638, 33203, 23960, 57, 58, 59}) chunks.push_back(detokenizer.Push(id));
  EXPECT_EQ(chunks, kChunks);
}

TEST(StopMatcherTest, TextIsReleasedAsSoonAsItCannotMatch) {
  auto matcher = StopMatcher::Create({"\n\nUser:"});
  EXPECT_EQ(matcher->Push("Hi\n").emit, "Hi");
  EXPECT_EQ(matcher->Push("\nUs").emit, "");
  EXPECT_EQ(matcher->Push("e ").emit, "\n\nUse ");
  EXPECT_EQ(matcher->Flush().emit, "");
}

TEST(StopMatcherTest, EarliestBeginWinsOverEarliestEnd) {
  // "BC" is complete first, but "ABCD" begins before it.
  EXPECT_EQ(Stream({"BC", "ABCD"}, {"xABC", "D"}).text, "x");
  EXPECT_EQ(Stream({"BC", "ABCD"}, {"xABC", "E"}).text, "xA");
  const Outcome ended = Stream({"BC", "ABCD"}, {"xABC"});  // the text ends: Flush cuts at BC
  EXPECT_EQ(ended.text, "xA");
  EXPECT_EQ(ended.matched, 0u);
}

TEST(StopMatcherTest, BadStopsAreNamed) {
  EXPECT_THAT(std::string(StopMatcher::Create({""}).status().message()), HasSubstr("stop[0]"));
  EXPECT_THAT(std::string(StopMatcher::Create({"END", ""}).status().message()),
              HasSubstr("stop[1]"));
  EXPECT_FALSE(StopMatcher::Create(std::vector<std::string>(65, "x")).ok());
  EXPECT_FALSE(StopMatcher::Create({std::string(1025, 'x')}).ok());
  EXPECT_EQ(Stream({}, kChunks).text, " ABCDEFGHIJK");
}

// Streams in random cuts against a search in the whole text.
TEST(StopMatcherTest, AgreesWithSearchingTheWholeText) {
  std::mt19937 random(7);
  const auto word = [&](size_t max) {
    std::string text;
    const size_t n = 1 + random() % max;
    for (size_t i = 0; i < n; ++i) text.push_back(static_cast<char>('a' + random() % 2));
    return text;
  };
  for (int round = 0; round < 20'000; ++round) {
    std::vector<std::string> stops;
    for (size_t i = 0; i < 1 + random() % 3; ++i) stops.push_back(word(6));
    const std::string text = word(24);
    size_t expected = text.size();
    bool found = false;
    for (const std::string& stop : stops) {
      const size_t at = text.find(stop);
      if (at != std::string::npos) {
        found = true;
        expected = std::min(expected, at);
      }
    }
    std::vector<std::string> chunks;
    for (size_t at = 0; at < text.size();) {
      const size_t n = 1 + random() % 4;
      chunks.push_back(text.substr(at, n));
      at += n;
    }
    const Outcome outcome = Stream(stops, chunks);
    ASSERT_EQ(outcome.text, text.substr(0, expected)) << text << " " << stops[0];
    ASSERT_EQ(outcome.matched.has_value(), found);
    if (found) {
      ASSERT_EQ(text.compare(expected, stops[*outcome.matched].size(), stops[*outcome.matched]), 0);
    }
  }
}

}  // namespace
}  // namespace baton
