// The end of a prefix that comes in codes is computed by the consumer: `handoff.seam`.
#include <string>
#include <vector>

#include "tests/decode_node/serve/codes_fixture.h"

namespace baton {
namespace {

using testing::HasSubstr;

class SeamTest : public CodesTest {
 protected:
  Answer Ask(int prompt, std::uint32_t seed, std::int64_t seam) {
    auto request = Request("m", Prompt(prompt, seed), "reuse", {producer_});
    if (seam >= 0) request.set_handoff_seam(static_cast<std::uint32_t>(seam));
    request.set_scope(absl::StrCat("seam-", ++scope_));  // nothing is cached here
    return NodePair::Ask(request);
  }
  void Start(int seam) {
    codec_file_ = WriteCodec("a", "b", CodeSource::kHidden);
    producer_ = StartPrefill("p", {EntryWith("base", "a", {codec_file_})});
    StartDecode({EntryWith("m", "b", {codec_file_})},
                [seam](DecodeConfig& c) { c.handoff.seam = seam; });
  }

  std::string codec_file_;
  std::string producer_;
  int scope_ = 0;
};

// A seam that ends within a block, with a block, and more than a block before the prefix does; it
// is whole pages.
TEST_F(SeamTest, TheRestIsComputedOnTopOfWhatIsDecoded) {
  Start(0);
  const auto prompt = Prompt(300, 5);  // a prefix of 192
  for (const int seam : {0, 16, 48, 64, 100, 176}) {
    SCOPED_TRACE(seam);
    const Answer got = Ask(300, 5, seam);
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.timing().strategy(), "reuse") << got.timing().fallback_reason();
    const int end = 192 - (seam + 15) / 16 * 16;
    EXPECT_EQ(got.finished.usage().transferred_tokens(), end - 4);
    EXPECT_EQ(got.timing().handoff_bytes(),
              static_cast<std::uint64_t>((end + 63) / 64 * 64) * 3 * 64);
    EXPECT_EQ(got.tokens, WithoutNodes("a", "b", prompt, end));
  }
  ExpectNothingHeld();
}

TEST_F(SeamTest, TheConfigsSeamIsTheDefault) {
  Start(20);
  const Answer got = Ask(300, 6, -1);
  EXPECT_EQ(got.finished.usage().transferred_tokens(), 192 - 32 - 4);
  EXPECT_EQ(got.tokens, WithoutNodes("a", "b", Prompt(300, 6), 192 - 32));
  EXPECT_EQ(Ask(300, 6, 0).finished.usage().transferred_tokens(), 192 - 4);
  // K/V that are not decoded have none.
  const Answer raw = NodePair::Ask(Request("m", Prompt(300, 7), "raw", {producer_}));
  EXPECT_EQ(raw.finished.usage().transferred_tokens(), 192 - 4);
}

TEST_F(SeamTest, OneThatCoversThePrefixIsOracle) {
  Start(0);
  for (const int seam : {192, 500}) {
    const Answer got = Ask(300, 5, seam);
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.timing().strategy(), "oracle");
    EXPECT_THAT(got.timing().fallback_reason(), HasSubstr("leaves nothing of the prefix of 192"));
    EXPECT_EQ(got.tokens, Oracle("m", Prompt(300, 5)).tokens);
  }
  const Answer refused = Ask(300, 5, (1 << 20) + 1);
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status.message()), HasSubstr("handoff_seam: 1048577"));
}

// A block is kept by how it came about: what one seam computed is not what another decodes.
TEST_F(SeamTest, SeamsDoNotShareTheirBlocks) {
  Start(0);
  const auto prompt = Prompt(300, 8);
  const auto ask = [&](std::uint32_t seam) {
    auto request = Request("m", prompt, "reuse", {producer_});
    request.set_handoff_seam(seam);
    return NodePair::Ask(request);
  };
  const Answer without = ask(0);
  const Answer with = ask(48);
  EXPECT_EQ(with.finished.usage().cached_tokens(), 0u);
  EXPECT_EQ(with.tokens, WithoutNodes("a", "b", prompt, 192 - 48));
  const Answer again = ask(48);
  EXPECT_EQ(again.finished.usage().cached_tokens(), 256u);
  EXPECT_EQ(again.tokens, with.tokens);
  EXPECT_EQ(ask(0).tokens, without.tokens);
}

}  // namespace
}  // namespace baton
