#include "decode_node/serve/drift_monitor.h"

#include <cmath>

#include "tests/decode_node/serve/node_pair.h"
#include "tests/support/tiny_codec.h"

namespace baton {
namespace {

TokenPrediction Prediction(const std::vector<std::pair<std::int32_t, double>>& probabilities) {
  TokenPrediction prediction;
  for (const auto& [id, p] : probabilities) {
    prediction.push_back({id, static_cast<float>(std::log(p)), ""});
  }
  return prediction;
}

TEST(BucketKl, IsTheFormulaOverWhatBothName) {
  const auto own = Prediction({{1, 0.5}, {2, 0.3}, {3, 0.1}});
  EXPECT_NEAR(BucketKl(own, own), 0, 1e-6);
  const auto served = Prediction({{1, 0.25}, {2, 0.5}, {4, 0.1}});
  // 1 and 2 are named by both; the rest has 0.2 and 0.25.
  const double want =
      0.5 * std::log(0.5 / 0.25) + 0.3 * std::log(0.3 / 0.5) + 0.2 * std::log(0.2 / 0.25);
  EXPECT_NEAR(BucketKl(own, served), want, 1e-6);
  EXPECT_FALSE(SameTop(own, served));
  EXPECT_TRUE(SameTop(own, Prediction({{9, 0.1}, {1, 0.8}})));
}

TEST(BucketKl, NothingInCommonIsFinite) {
  const double kl = BucketKl(Prediction({{1, 1.0}}), Prediction({{2, 1.0}}));
  EXPECT_TRUE(std::isfinite(kl));
  EXPECT_GE(kl, 0);
}

class DriftTest : public NodePair {
 protected:
  double Total(const std::string& name) {
    const std::string text = decode_->metrics().SerializeText();
    const auto at = text.find(name + "{model=\"m\"");
    return at == std::string::npos ? 0 : std::stod(text.substr(text.find("} ", at) + 2));
  }
};

TEST_F(DriftTest, AWatchedRequestIsReplayedAndLooksLikeAnyOther) {
  const auto opened = ModelSource::Open((dir_ / "a").string());
  ASSERT_TRUE(opened.ok()) << opened.status();
  const auto tokenizer = Tokenizer::FromJson((*opened)->tokenizer_json());
  const std::string path = (dir_ / "codec").string();
  ASSERT_TRUE(SaveCodec(TinyCodec((dir_ / "a").string(), CodeSource::kHidden, (dir_ / "b").string(),
                                  (*tokenizer)->digest()),
                        path)
                  .ok());
  ModelEntry base = Entry("base", "a");
  ModelEntry consumer = Entry("m", "b");
  consumer.base_model = "base";
  base.codecs = consumer.codecs = {path};
  const std::string producer = StartPrefill("p", {base});
  StartDecode({consumer}, [](DecodeConfig& c) { c.handoff.drift_sample = 1; });
  auto request = Request("m", Prompt(300, 3), "reuse", {producer});
  const Answer plain = Ask(request);
  ASSERT_TRUE(plain.status.ok()) << plain.status;
  EXPECT_EQ(plain.timing().strategy(), "reuse") << plain.timing().fallback_reason();
  EXPECT_TRUE(plain.logprobs.empty());  // nobody asked for them
  EXPECT_TRUE(Eventually([&] { return Total("baton_drift_tokens_total") == 12; }));
  EXPECT_EQ(Total("baton_drift_kl_nats_count"), 12);
  request.set_scope("another");
  request.mutable_sampling()->set_logprobs(true);
  request.mutable_sampling()->set_top_logprobs(2);
  const Answer asked = Ask(request);
  ASSERT_EQ(asked.logprobs.size(), 12u);
  EXPECT_EQ(asked.logprobs[0].top_size(), 2);
  EXPECT_EQ(asked.tokens, plain.tokens);
  EXPECT_TRUE(Eventually([&] { return Total("baton_drift_tokens_total") == 24; }));
  ExpectNothingHeld();
}

}  // namespace
}  // namespace baton
