#include "router/gateway/openai_request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace baton {
namespace {

using testing::HasSubstr;

OpenAiRequest Parsed(OpenAiKind kind, const std::string& body) {
  auto result = ParseOpenAiRequest(kind, body);
  if (const ApiError* error = std::get_if<ApiError>(&result)) {
    ADD_FAILURE() << body << ": " << error->message;
    return {};
  }
  return std::get<OpenAiRequest>(std::move(result));
}

ApiError Refused(OpenAiKind kind, const std::string& body) {
  auto result = ParseOpenAiRequest(kind, body);
  if (const ApiError* error = std::get_if<ApiError>(&result)) return *error;
  ADD_FAILURE() << "accepted: " << body;
  return {};
}

std::string Chat(const std::string& more) {
  return R"({"model":"m","messages":[{"role":"user","content":"hi"}],)" + more + "}";
}
std::string Completion(const std::string& more) { return R"({"model":"m",)" + more + "}"; }

TEST(OpenAiRequestTest, ReadsEveryField) {
  const OpenAiRequest r =
      Parsed(OpenAiKind::kChat,
             Chat(R"("temperature":0.5,"top_p":0.9,"top_k":40,"min_p":0.1,"presence_penalty":1,
              "frequency_penalty":-1,"repetition_penalty":1.1,"logit_bias":{"33203":-100},
              "seed":-5,"n":3,"stop":["a","b"],"max_tokens":7,"max_completion_tokens":9,
              "logprobs":true,"top_logprobs":4,"stream":true,
              "stream_options":{"include_usage":true},"user":"u","metadata":{"a":1},
              "response_format":{"type":"text"},"tools":[],"tool_choice":"none","unknown":[1],
              "shared_prefix_tokens":128,"strategy":"raw","include_timing":true,"priority":-3)"));
  ASSERT_EQ(r.prompts.size(), 1u);
  const v1::GenerateRequest& g = r.prompts[0];
  EXPECT_EQ(g.model(), "m");
  EXPECT_EQ(g.chat().messages(0).content(), "hi");
  EXPECT_EQ(g.sampling().temperature(), 0.5);
  EXPECT_EQ(g.sampling().top_p(), 0.9);
  EXPECT_EQ(g.sampling().top_k(), 40);
  EXPECT_EQ(g.sampling().min_p(), 0.1);
  EXPECT_EQ(g.sampling().presence_penalty(), 1);
  EXPECT_EQ(g.sampling().frequency_penalty(), -1);
  EXPECT_EQ(g.sampling().repetition_penalty(), 1.1);
  EXPECT_EQ(g.sampling().logit_bias().at(33203), -100);
  EXPECT_EQ(g.sampling().seed(), static_cast<uint64_t>(-5));
  EXPECT_TRUE(g.sampling().logprobs());
  EXPECT_EQ(g.sampling().top_logprobs(), 4);
  EXPECT_EQ(g.stop().max_tokens(), 9);
  EXPECT_THAT(g.stop().stop(), testing::ElementsAre("a", "b"));
  EXPECT_EQ(g.shared_prefix_tokens(), 128u);
  EXPECT_EQ(g.strategy(), "raw");
  EXPECT_EQ(g.priority(), -3);
  EXPECT_TRUE(g.want_timing());
  EXPECT_EQ(r.n, 3);
  EXPECT_TRUE(r.stream);
  EXPECT_TRUE(r.include_usage);
}

// OpenAI's API reference: completions default to 16 tokens, chat to what the context holds.
TEST(OpenAiRequestTest, CompletionsWithoutALimitStopAfter16Tokens) {
  EXPECT_EQ(
      Parsed(OpenAiKind::kCompletion, Completion(R"("prompt":"a")")).prompts[0].stop().max_tokens(),
      16);
  EXPECT_EQ(Parsed(OpenAiKind::kCompletion, Completion(R"("prompt":"a","max_tokens":3)"))
                .prompts[0]
                .stop()
                .max_tokens(),
            3);
  EXPECT_FALSE(Parsed(OpenAiKind::kChat, Chat(R"("n":1)")).prompts[0].stop().has_max_tokens());
}

TEST(OpenAiRequestTest, AbsentAndNullAreNotSet) {
  const OpenAiRequest r =
      Parsed(OpenAiKind::kChat, Chat(R"("temperature":null,"max_tokens":null,"stop":null,"n":null,
                                 "stream_options":null,"tools":null,"response_format":null)"));
  EXPECT_FALSE(r.prompts[0].sampling().has_temperature());
  EXPECT_FALSE(r.prompts[0].stop().has_max_tokens());
  EXPECT_EQ(r.n, 1);
  EXPECT_FALSE(r.prompts[0].has_shared_prefix_tokens());
}

TEST(OpenAiRequestTest, TextPartsAreJoinedWithNothingBetween) {
  const OpenAiRequest r =
      Parsed(OpenAiKind::kChat,
             R"({"messages":[{"role":"developer","content":"s"},{"role":"user","content":[
          {"type":"text","text":"<note>\n\n"},{"type":"text","text":"Test!"}]}]})");
  EXPECT_EQ(r.prompts[0].chat().messages(0).role(), "system");
  EXPECT_EQ(r.prompts[0].chat().messages(1).content(), "<note>\n\nTest!");
  const char* bad[] = {R"([{"type":"image_url","image_url":{}}])",
                       R"(["bare"])",
                       R"([{}])",
                       R"([{"type":"text"}])",
                       "5",
                       "null",
                       "{}"};
  for (const char* content : bad) {
    const ApiError e =
        Refused(OpenAiKind::kChat,
                std::string(R"({"messages":[{"role":"user","content":)") + content + "}]}");
    EXPECT_THAT(e.param, HasSubstr("messages[0].content")) << content;
  }
}

TEST(OpenAiRequestTest, PromptForms) {
  EXPECT_EQ(Parsed(OpenAiKind::kCompletion, Completion(R"("prompt":"x")")).prompts[0].text(), "x");
  EXPECT_EQ(Parsed(OpenAiKind::kCompletion, Completion(R"("prompt":["x","y"])")).prompts.size(),
            2u);
  const auto ids = Parsed(OpenAiKind::kCompletion, Completion(R"("prompt":[1,2,3])"));
  ASSERT_EQ(ids.prompts.size(), 1u);
  EXPECT_THAT(ids.prompts[0].tokens().ids(), testing::ElementsAre(1, 2, 3));
  EXPECT_EQ(Parsed(OpenAiKind::kCompletion, Completion(R"("prompt":[[1],[2,3]])")).prompts.size(),
            2u);
  for (const char* bad : {"5", "[]", "[1,\"a\"]", "[\"a\",1]", "{}", "[1.5]", "[[\"a\"]]"}) {
    EXPECT_EQ(Refused(OpenAiKind::kCompletion, Completion(std::string(R"("prompt":)") + bad)).param,
              "prompt")
        << bad;
  }
}

struct Case {
  const char* param;
  const char* field;
};

TEST(OpenAiRequestTest, WrongTypesAndUnsupportedFieldsAreNamed) {
  const Case cases[] = {
      {"temperature", R"("temperature":"hot")"},
      {"max_tokens", R"("max_tokens":1.5)"},
      {"max_tokens", R"("max_tokens":"5")"},
      {"seed", R"("seed":"x")"},
      {"seed", R"("seed":18446744073709551615)"},
      {"n", R"("n":0)"},
      {"n", R"("n":17)"},
      {"stream", R"("stream":"yes")"},
      {"stop", R"("stop":[1])"},
      {"stop", R"("stop":5)"},
      {"logit_bias", R"("logit_bias":{"abc":1})"},
      {"logit_bias", R"("logit_bias":{"5":"1"})"},
      {"logit_bias", R"("logit_bias":[1])"},
      {"logprobs", R"("logprobs":5)"},
      {"top_logprobs", R"("logprobs":true,"top_logprobs":21)"},
      {"top_logprobs", R"("top_logprobs":2)"},
      {"model", R"("model":5)"},
      {"strategy", R"("strategy":5)"},
      {"shared_prefix_tokens", R"("shared_prefix_tokens":-1)"},
      {"stream_options", R"("stream_options":{"include_usage":true})"},
      {"stream_options.include_usage", R"("stream":true,"stream_options":{"include_usage":1})"},
      {"response_format", R"("response_format":{"type":"json_object"})"},
      {"tools", R"("tools":[{"type":"function"}])"},
      {"tool_choice", R"("tool_choice":"required")"},
      {"best_of", R"("best_of":2)"},
      {"echo", R"("echo":true)"},
  };
  for (const Case& c : cases) {
    const ApiError e = Refused(OpenAiKind::kChat, Chat(c.field));
    EXPECT_EQ(e.status, 400) << c.field;
    EXPECT_EQ(e.param, c.param) << c.field;
    EXPECT_EQ(e.type, "invalid_request_error");
    EXPECT_THAT(e.message, HasSubstr(c.param)) << c.field;
  }
  EXPECT_EQ(Refused(OpenAiKind::kCompletion, Completion(R"("prompt":"x","echo":true,"logprobs":1)"))
                .param,
            "echo");
  EXPECT_EQ(Refused(OpenAiKind::kCompletion, Completion(R"("prompt":[1],"echo":true)")).param,
            "echo");
  EXPECT_EQ(Refused(OpenAiKind::kCompletion, Completion(R"("prompt":"x","logprobs":true)")).param,
            "logprobs");
  EXPECT_EQ(Refused(OpenAiKind::kChat, R"({"messages":[]})").param, "messages");
  EXPECT_EQ(Refused(OpenAiKind::kChat, R"({"messages":[{"role":"king","content":"x"}]})").param,
            "messages[0].role");
}

TEST(OpenAiRequestTest, HostileJsonIsRefused) {
  const std::string deep = "{\"a\":" + std::string(100000, '[');
  for (const std::string& body :
       {std::string(""), std::string("{"), std::string("[]"), std::string("5"), deep,
        std::string("{\"messages\":[{\"role\":\"user\",\"content\":\"\xff\xfe\"}]}"),
        std::string("{\"temperature\":NaN}"), std::string("{\"temperature\":1e999}"),
        std::string("{\"messages\":[{\"role\":\"user\",\"content\":\"\\ud800\"}]}")}) {
    const ApiError e = Refused(OpenAiKind::kChat, body);
    EXPECT_EQ(e.status, 400);
    EXPECT_FALSE(e.message.empty());
  }
}

}  // namespace
}  // namespace baton
