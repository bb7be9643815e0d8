// Prefixes of which a run of layers is computed by the decode node, from the producer's stream.
#include "common/base/fault.h"
#include "common/scd/stream_rows.h"
#include "tests/decode_node/serve/node_pair.h"

namespace baton {
namespace {

class SelectiveTest : public NodePair {
 protected:
  ModelEntry Selective(const std::string& name, const std::string& folder,
                       const std::string& layers) const {
    ModelEntry e = Entry(name, folder);
    e.selective_layers = layers;
    return e;
  }
};

TEST_F(SelectiveTest, EqualWeightsGiveTheTokensOfOracleForFewerBytes) {
  const std::string producer = StartPrefill("prefill", {Entry("m", "a")});
  StartDecode({Selective("m", "a", "1-2")});
  for (const int n : {130, 192, 700, 1900}) {
    const auto prompt = Prompt(n, static_cast<std::uint32_t>(n));
    const Answer want = Oracle("m", prompt);
    ASSERT_TRUE(want.status.ok()) << want.status;
    auto request = Request("m", prompt, "selective", {producer});
    request.set_scope(absl::StrCat("selective-", n));
    const Answer got = Ask(request);
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.tokens, want.tokens) << n;
    EXPECT_EQ(got.timing().strategy(), "selective") << got.timing().fallback_reason();
    const int prefix = (n - 64) / 64 * 64;
    EXPECT_EQ(got.finished.usage().transferred_tokens(), prefix - 4);
    // fp32 K/V of one layer and one row of the stream.
    const TinyLlama shape;
    const auto row = static_cast<std::size_t>(shape.kv_heads * shape.head_dim * 2 * 4) +
                     StreamRowBytes(shape.hidden);
    EXPECT_EQ(got.timing().handoff_bytes(), static_cast<std::size_t>(prefix) * row);
    // Cached as what it is.
    const Answer again = Ask(request);
    EXPECT_EQ(again.tokens, got.tokens);
    EXPECT_EQ(again.finished.usage().transferred_tokens(), 0);
    EXPECT_EQ(again.finished.usage().cached_tokens(), (n - 1) / 64 * 64);
    for (const char* strategy : {"oracle", "raw"}) {
      request.set_strategy(strategy);
      EXPECT_EQ(Ask(request).finished.usage().cached_tokens(),
                strategy == std::string("raw") ? (n - 1) / 64 * 64 : 0);
    }
  }
  ExpectNothingHeld();
}

TEST_F(SelectiveTest, ARunOfAllLayersIsTheConsumersOwnPrefill) {
  const std::string producer = StartPrefill("prefill", {Entry("base", "a")});
  ModelEntry all = Selective("all", "a", "0-2");
  ModelEntry some = Selective("some", "b", "1-2");
  some.base_model = all.base_model = "base";
  StartDecode({all, some});
  const auto prompt = Prompt(600, 4);
  const Answer of_all = Ask(Request("all", prompt, "selective", {producer}));
  EXPECT_EQ(of_all.timing().strategy(), "selective") << of_all.timing().fallback_reason();
  EXPECT_EQ(of_all.tokens, Oracle("all", prompt).tokens);
  // Of other weights: neither raw's rows nor this model's own.
  const Answer of_some = Ask(Request("some", prompt, "selective", {producer}));
  EXPECT_EQ(of_some.timing().strategy(), "selective") << of_some.timing().fallback_reason();
  EXPECT_NE(of_some.tokens, Oracle("some", prompt).tokens);
  EXPECT_NE(of_some.tokens, Ask(Request("some", prompt, "raw", {producer})).tokens);
  ExpectNothingHeld();
}

TEST_F(SelectiveTest, AModelWithoutLayersForItRefusesItByName) {
  const std::string producer = StartPrefill("prefill", {Entry("m", "a")});
  StartDecode({Entry("m", "a"), Selective("n", "a", "0-1")},
              [](DecodeConfig& c) { c.handoff.strategy = Strategy::kSelective; });
  const auto prompt = Prompt(300, 5);
  const Answer refused = Ask(Request("m", prompt, "selective", {producer}));
  EXPECT_EQ(refused.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(refused.status.message()), testing::HasSubstr("selective_layers"));
  // Who named nothing gets an answer.
  const Answer fallen = Ask(Request("m", prompt, "", {producer}));
  ASSERT_TRUE(fallen.status.ok()) << fallen.status;
  EXPECT_EQ(fallen.timing().strategy(), "oracle");
  EXPECT_THAT(fallen.timing().fallback_reason(), testing::HasSubstr("selective_layers"));
}

TEST_F(SelectiveTest, ALostProducerIsReplacedAndThenDoneWithout) {
  const std::string first = StartPrefill("first", {Entry("m", "a")});
  const std::string second = StartPrefill("second", {Entry("m", "a")});
  StartDecode({Selective("m", "a", "1-1")});
  const auto prompt = Prompt(500, 6);
  const Answer want = Oracle("m", prompt);
  for (const int failures : {1, 2}) {
    Fault fault;
    fault.max_hits = failures;
    ScopedFault scoped("producer.after_layer", fault);
    auto request = Request("m", prompt, "selective", {first, second});
    request.set_scope(absl::StrCat("failures-", failures));
    const Answer got = Ask(request);
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.tokens, want.tokens);
    EXPECT_EQ(got.timing().strategy(), failures == 1 ? "selective" : "oracle");
  }
  ExpectNothingHeld();
}

}  // namespace
}  // namespace baton
