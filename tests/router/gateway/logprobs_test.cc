// Log-probabilities and echo over HTTP.
#include <gmock/gmock.h>

#include <limits>

#include "tests/router/gateway/gateway_fixture.h"

namespace baton {
namespace {

using nlohmann::json;
using testing::HasSubstr;

v1::TokenLogprobs Token(const std::string& bytes, float logprob, bool first = false) {
  v1::TokenLogprobs token;
  token.mutable_chosen()->set_bytes(bytes);
  if (first) return token;
  token.mutable_chosen()->set_logprob(logprob);
  for (const char* other : {"x", "y"}) {
    token.add_top()->set_bytes(other);
    token.mutable_top(token.top_size() - 1)->set_logprob(logprob - 1);
  }
  return token;
}

// "The capital" as three tokens, scored in two pieces, then what was asked for.
void ScoreThenSay(const std::shared_ptr<FakeGeneration>& g) {
  if (g->request.sampling().prompt_logprobs()) {
    v1::GenerateEvent piece;
    *piece.mutable_delta()->add_prompt_logprobs() = Token("The", 0, /*first=*/true);
    *piece.mutable_delta()->add_prompt_logprobs() = Token(" cap", -0.5F);
    g->Event(piece);
    piece.Clear();
    *piece.mutable_delta()->add_prompt_logprobs() = Token("ital", -0.25F);
    g->Event(piece);
  }
  const int64_t max_tokens = g->request.stop().max_tokens();
  for (int64_t i = 0; i < max_tokens; ++i) {
    v1::GenerateEvent event;
    event.mutable_delta()->set_text(" is");
    event.mutable_delta()->add_token_ids(9);
    *event.mutable_delta()->add_logprobs() = Token(" is", -0.125F);
    g->Event(event);
  }
  g->Finished(v1::LENGTH, 3, max_tokens);
}

class LogprobsTest : public GatewayFixture {
 protected:
  void SetUp() override {
    GatewayFixture::SetUp();
    backend_.script = ScoreThenSay;
  }
  static void ExpectScores(const json& logprobs, size_t generated) {
    ASSERT_EQ(logprobs["tokens"].size(), 3 + generated);
    EXPECT_EQ(logprobs["token_logprobs"][0], nullptr);
    EXPECT_EQ(logprobs["top_logprobs"][0], nullptr);
    EXPECT_EQ(logprobs["token_logprobs"][1], -0.5);
    EXPECT_EQ(logprobs["token_logprobs"][2], -0.25);
    EXPECT_EQ(logprobs["top_logprobs"][1], json({{" cap", -0.5}, {"x", -1.5}, {"y", -1.5}}));
    json offsets = {0, 3, 7};
    for (size_t i = 0; i < generated; ++i) offsets.push_back(11 + 3 * i);
    EXPECT_EQ(logprobs["text_offset"], offsets);
  }
};

// Case lp-01: P + 1 entries for max_tokens 1, P and no generated token for 0, stream and not.
TEST_F(LogprobsTest, EchoScoresThePromptToo) {
  for (const int max_tokens : {0, 1, 2}) {
    for (const char* prompt : {R"("The capital")", "[5,6,7]"}) {
      const std::string fields = std::string(R"("prompt":)") + prompt +
                                 R"(,"echo":true,"logprobs":2,"max_tokens":)" +
                                 std::to_string(max_tokens);
      const HttpReplyText reply = Complete(fields);
      ASSERT_EQ(reply.status, 200) << reply.body;
      const json body = json::parse(reply.body);
      std::string text = "The capital";
      for (int i = 0; i < max_tokens; ++i) text += " is";
      EXPECT_EQ(body["choices"][0]["text"], text);
      EXPECT_EQ(body["choices"][0]["finish_reason"], "length");
      EXPECT_EQ(body["usage"]["completion_tokens"], max_tokens);
      ExpectScores(body["choices"][0]["logprobs"], static_cast<size_t>(max_tokens));

      json streamed = {{"tokens", json::array()},
                       {"token_logprobs", json::array()},
                       {"top_logprobs", json::array()},
                       {"text_offset", json::array()}};
      std::string deltas;
      for (const json& chunk : Chunks(Complete(fields + R"(,"stream":true)"))) {
        const json& choice = chunk["choices"][0];
        deltas += choice["text"].get<std::string>();
        if (choice["logprobs"].is_null()) continue;
        for (auto& [key, list] : streamed.items()) {
          for (const json& item : choice["logprobs"][key]) list.push_back(item);
        }
      }
      EXPECT_EQ(deltas, text);
      EXPECT_EQ(streamed, body["choices"][0]["logprobs"]);
    }
  }
}

TEST_F(LogprobsTest, OffsetsOfChoicesAndPromptsAreTheirOwn) {
  const json body = json::parse(
      Complete(
          R"("prompt":["The capital","The capital"],"n":2,"echo":true,"logprobs":0,"max_tokens":1)")
          .body);
  ASSERT_EQ(body["choices"].size(), 4u);
  for (const json& choice : body["choices"]) {
    EXPECT_EQ(choice["text"], "The capital is");
    EXPECT_EQ(choice["logprobs"]["text_offset"], json({0, 3, 7, 11}));
  }
}

TEST_F(LogprobsTest, WithoutEchoOnlyWhatWasGenerated) {
  const json body =
      json::parse(Complete(R"("prompt":"The capital","logprobs":2,"max_tokens":2)").body);
  EXPECT_FALSE(backend_.At(0)->request.sampling().prompt_logprobs());
  EXPECT_EQ(body["choices"][0]["logprobs"]["text_offset"], json({0, 3}));
  EXPECT_EQ(body["choices"][0]["text"], " is is");
}

TEST_F(LogprobsTest, EchoOfTokenIdsNeedsTheirText) {
  const HttpReplyText reply = Complete(R"("prompt":[5,6],"echo":true)");
  EXPECT_EQ(reply.status, 400);
  EXPECT_EQ(json::parse(reply.body)["error"]["param"], "echo");
  EXPECT_THAT(reply.body, HasSubstr("logprobs"));
}

// Case lp-02. The rule for a token that is part of a character: its bytes are its own; as text,
// chat shows U+FFFD and completions spell the bytes out.
TEST_F(LogprobsTest, PartsOfACharacterKeepTheirBytes) {
  backend_.script = [](const std::shared_ptr<FakeGeneration>& g) {
    for (const char* bytes : {"\xf0\x9f", "\x98", "\x8a"}) {
      v1::GenerateEvent event;
      event.mutable_delta()->add_token_ids(1);
      if (bytes[0] == '\x8a') event.mutable_delta()->set_text("\xf0\x9f\x98\x8a");
      *event.mutable_delta()->add_logprobs() = Token(bytes, -1);
      g->Event(event);
    }
    g->Finished(v1::STOP, 1, 3);
  };
  const json chat = json::parse(Chat(R"("logprobs":true,"top_logprobs":2)").body);
  std::string joined;
  for (const json& token : chat["choices"][0]["logprobs"]["content"]) {
    EXPECT_EQ(token["token"], "\xef\xbf\xbd");
    for (const json& byte : token["bytes"]) joined += static_cast<char>(byte.get<int>());
  }
  EXPECT_EQ(joined, "\xf0\x9f\x98\x8a");
  EXPECT_EQ(chat["choices"][0]["logprobs"]["content"][0]["bytes"], json({240, 159}));
  EXPECT_EQ(chat["choices"][0]["logprobs"]["content"][1]["bytes"], json({152}));
  EXPECT_EQ(chat["choices"][0]["logprobs"]["content"][2]["bytes"], json({138}));
  const json text = json::parse(Complete(R"("prompt":"x","logprobs":2)").body);
  EXPECT_EQ(text["choices"][0]["logprobs"]["tokens"],
            json({"bytes:\\xf0\\x9f", "bytes:\\x98", "bytes:\\x8a"}));
  EXPECT_EQ(text["choices"][0]["logprobs"]["text_offset"], json({0, 0, 0}));
}

}  // namespace
}  // namespace baton
