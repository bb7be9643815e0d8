// Forced tokens of smollm2_tokenizer.json as one sequence's text.
#include "common/engine/text_stream.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/test_data.h"

namespace baton {
namespace {

// " ABC", "DEF", "GH", "I", "J", "K"
const std::vector<std::int32_t> kForced = {17638, 33203, 23960, 57, 58, 59};

struct Streamed {
  std::string text;        // the deltas joined
  std::size_t pushed = 0;  // tokens until it stopped
  std::optional<std::size_t> stopped;
};

class TextStreamTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string path = SharedDataDir() + "/tokenizers/smollm2_tokenizer.json";
    BATON_SKIP_WITHOUT(path);
    auto tokenizer = Tokenizer::FromJson(ReadFileOrEmpty(path));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
  }
  Streamed Stream(const std::vector<std::string>& stops,
                  const std::vector<std::int32_t>& tokens = kForced,
                  std::int64_t unwatched = 0) const {
    TextStream stream(tokenizer_.get(), *StopMatcher::Create(stops), unwatched);
    Streamed out;
    for (const std::int32_t token : tokens) {
      ++out.pushed;
      const TextStream::Piece piece = stream.Push(token);
      out.text += piece.text;
      out.stopped = piece.stopped;
      if (out.stopped) return out;
    }
    const TextStream::Piece rest = stream.Finish();
    out.text += rest.text;
    out.stopped = rest.stopped;
    return out;
  }
  std::shared_ptr<const Tokenizer> tokenizer_;
};

// Case str-01.
TEST_F(TextStreamTest, NothingOfAStopTextOverFiveTokensLeaks) {
  const Streamed hit = Stream({"DEFGHIJ"});
  EXPECT_EQ(hit.text, " ABC");
  EXPECT_EQ(hit.pushed, 5u) << "id 59 must never be generated";
  const Streamed miss = Stream({"DEFGHIX"});
  EXPECT_EQ(miss.text, " ABCDEFGHIJK");
  EXPECT_FALSE(miss.stopped.has_value());
}

// Case str-02.
TEST_F(TextStreamTest, AStopTextInsideATokenEndsThere) {
  EXPECT_EQ(Stream({"DE"}).text, " ABC");
  EXPECT_EQ(Stream({"DE"}).pushed, 2u) << "the token that held the stop text counts";
  EXPECT_EQ(Stream({"EF"}).text, " ABCD");
  EXPECT_EQ(Stream({"HI"}).text, " ABCDEFG");
  EXPECT_EQ(Stream({"HI"}).pushed, 4u);
  const Streamed several = Stream({"HI", "EF", "K"});
  EXPECT_EQ(several.text, " ABCD") << "the earliest position wins";
  EXPECT_EQ(several.stopped, 1u);
}

// The kind of str-02: a stop text that begins with part of a character's token sequence.
TEST_F(TextStreamTest, AStopTextOfSplitCharacters) {
  const std::vector<std::int32_t> emoji = {10813, 242, 228, 17638};  // one emoji in three tokens
  const std::string text = Stream({}, emoji).text;
  const std::string first = text.substr(0, text.find(" ABC"));
  EXPECT_EQ(first.size(), 4u);
  EXPECT_EQ(Stream({first}, emoji).text, "");
  EXPECT_EQ(Stream({first}, emoji).pushed, 3u);
  EXPECT_EQ(Stream({first + " A"}, emoji).text, "");
  EXPECT_EQ(Stream({first + "x"}, emoji).text, text);
}

TEST_F(TextStreamTest, UnwatchedTokensAreNotSearched) {
  EXPECT_EQ(Stream({"DE"}, kForced, 3).text, " ABCDEFGHIJK");
  EXPECT_EQ(Stream({"IJ"}, kForced, 3).text, " ABCDEFGH");
}

// Case lp-02, the engine's half: entries carry TokenBytes, never text.
TEST_F(TextStreamTest, BytesOfPartsOfACharacterAreTheTokensOwn) {
  EXPECT_EQ(tokenizer_->TokenBytes(10813), "\xf0\x9f");
  EXPECT_EQ(tokenizer_->TokenBytes(242), "\x98");
  EXPECT_EQ(tokenizer_->TokenBytes(228), "\x8a");
}

// A SentencePiece vocabulary marks the space in front of each word. At the start of a text it's no
// part of it; in a completion it stands between the prompt and the reply.
TEST(TextStreamSpaceTest, ASpaceBetweenPromptAndReplyStays) {
  const auto tokenizer = Tokenizer::FromJson(R"({
      "model": {"type": "BPE", "merges": [], "vocab": {"\u2581Paris": 0, "\u2581is": 1}},
      "decoder": {"type": "Sequence", "decoders": [
          {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
          {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]}})");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  TextStream begins(tokenizer->get(), StopMatcher(), 0);
  EXPECT_EQ(begins.Push(0).text, "Paris");
  EXPECT_EQ(begins.Push(1).text, " is");
  TextStream goes_on(tokenizer->get(), StopMatcher(), 0, /*continues_text=*/true);
  EXPECT_EQ(goes_on.Push(0).text, " Paris");
  EXPECT_EQ(goes_on.Push(1).text, " is");
}

}  // namespace
}  // namespace baton
