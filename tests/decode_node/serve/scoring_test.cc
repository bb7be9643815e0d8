// Log-probabilities of a prompt, and requests a node refuses.
#include <vector>

#include "tests/decode_node/serve/node_pair.h"

namespace baton {
namespace {

using testing::HasSubstr;

class ScoringTest : public NodePair {
 protected:
  v1::DecodeRequest Scored(const std::vector<std::int64_t>& tokens, const std::string& strategy,
                           std::int64_t max_tokens,
                           const std::vector<std::string>& producers = {}) const {
    v1::DecodeRequest r = Request("m", tokens, strategy, producers);
    r.mutable_stop()->set_max_tokens(max_tokens);
    r.mutable_sampling()->set_logprobs(true);
    r.mutable_sampling()->set_top_logprobs(2);
    r.mutable_sampling()->set_prompt_logprobs(true);
    return r;
  }
  // The scores, with the rest in `answer`.
  std::vector<v1::TokenLogprobs> Scores(const v1::DecodeRequest& request, Answer* answer) {
    grpc::ClientContext context;
    auto stream = stub_->Generate(&context, request);
    std::vector<v1::TokenLogprobs> scores;
    v1::DecodeEvent event;
    while (stream->Read(&event)) {
      for (const auto& s : event.delta().prompt_logprobs()) scores.push_back(s);
      for (const auto id : event.delta().token_ids()) answer->tokens.push_back(id);
      if (event.has_finished()) answer->finished = event.finished();
    }
    answer->status = FromGrpcStatus(stream->Finish());
    return scores;
  }
};

// Case lp-01: when the prefix could come from another node, and when it did before.
TEST_F(ScoringTest, APromptIsScoredHereWhereverItsPrefixMayComeFrom) {
  const std::string producer = StartPrefill("one", {Entry("m", "a")});
  StartDecode({Entry("m", "a")});
  const auto prompt = Prompt(400, 3);
  Answer cold;
  const auto expected = Scores(Scored(prompt, "oracle", 1), &cold);
  ASSERT_TRUE(cold.status.ok()) << cold.status;
  ASSERT_EQ(expected.size(), 400u);
  EXPECT_FALSE(expected[0].chosen().has_logprob());
  EXPECT_TRUE(expected[1].chosen().has_logprob());
  EXPECT_EQ(expected[1].top_size(), 2);
  EXPECT_EQ(cold.tokens.size(), 1u);

  decode_->host().ClearPrefixCaches();
  const Answer handed = Ask(Request("m", prompt, "raw", {producer}));
  ASSERT_TRUE(handed.status.ok()) << handed.status;
  EXPECT_GT(handed.finished.usage().transferred_tokens(), 0);
  for (const std::int64_t max_tokens : {0, 1}) {
    Answer answer;
    const auto scores = Scores(Scored(prompt, "raw", max_tokens, {producer}), &answer);
    ASSERT_TRUE(answer.status.ok()) << answer.status;
    EXPECT_EQ(answer.tokens.size(), static_cast<size_t>(max_tokens));
    EXPECT_EQ(answer.finished.reason(), v1::LENGTH);
    EXPECT_EQ(answer.finished.usage().transferred_tokens(), 0);
    EXPECT_EQ(answer.finished.usage().cached_tokens(), 0);
    EXPECT_THAT(answer.timing().fallback_reason(), HasSubstr("computed here"));
    ASSERT_EQ(scores.size(), expected.size());
    for (size_t i = 0; i < scores.size(); ++i) {
      EXPECT_EQ(scores[i].SerializeAsString(), expected[i].SerializeAsString()) << i;
    }
  }
  ExpectNothingHeld();
}

TEST_F(ScoringTest, RefusedRequestsAreCounted) {
  StartDecode({Entry("m", "a")});
  auto bad = Request("m", Prompt(20, 1), "oracle");
  bad.mutable_stop()->set_max_tokens(0);
  const Answer answer = Ask(bad);
  EXPECT_EQ(answer.status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(answer.status.message()), HasSubstr("prompt_logprobs"));
  for (int i = 0; i < 3; ++i) {
    bad.set_model(absl::StrCat("no-such-", i));
    EXPECT_EQ(Ask(bad).status.code(), absl::StatusCode::kNotFound);
  }
  const std::string text = decode_->metrics().SerializeText();
  EXPECT_THAT(text, HasSubstr("baton_requests_total{model=\"m\",outcome=\"refused\"} 1"));
  EXPECT_THAT(text, HasSubstr("baton_requests_total{model=\"unknown\",outcome=\"refused\"} 3"))
      << "a name per client would be a label without bounds";
}

}  // namespace
}  // namespace baton
