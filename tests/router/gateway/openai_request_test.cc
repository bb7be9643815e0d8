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

// Case tpl-01: every text part counts, in order.
TEST(OpenAiRequestTest, AnEmptyListOfPartsIsAnEmptyText) {
  const OpenAiRequest r =
      Parsed(OpenAiKind::kChat,
             R"({"messages":[{"role":"user","content":[]},{"role":"assistant","content":[
          {"type":"text","text":"a"},{"type":"text","text":""},{"type":"text","text":"b"}]}]})");
  EXPECT_EQ(r.prompts[0].chat().messages(0).content(), "");
  EXPECT_EQ(r.prompts[0].chat().messages(1).content(), "ab");
}

// A conversation as the openai package sends it back, nulls included.
TEST(OpenAiRequestTest, ToolTraffic) {
  const OpenAiRequest r = Parsed(OpenAiKind::kChat, R"({"messages":[
      {"role":"user","content":"w?"},
      {"role":"assistant","content":null,"refusal":null,"audio":null,"function_call":null,
       "reasoning_content":"hm","tool_calls":[{"id":"abcdefghi","type":"function",
         "function":{"arguments":"{\"a\": 1}","name":"f"}}]},
      {"role":"tool","tool_call_id":"abcdefghi","content":[{"type":"text","text":"42"}]},
      {"role":"assistant","content":"so","tool_calls":null},
      {"role":"assistant","content":"on","tool_calls":[]}],
    "tool_choice":"auto","parallel_tool_calls":true,
    "chat_template_kwargs":{"enable_thinking":false,"date_string":"1 Jan 2026"},
    "tools":[{"type":"function","function":{"name":"f","b":1.0,"a":[1e5,12345678901234567890123]}}]})");
  const auto& chat = r.prompts[0].chat();
  ASSERT_EQ(chat.messages_size(), 5);
  EXPECT_EQ(chat.messages(1).content(), "");
  EXPECT_EQ(chat.messages(1).reasoning_content(), "hm");
  ASSERT_EQ(chat.messages(1).tool_calls_size(), 1);
  EXPECT_EQ(chat.messages(1).tool_calls(0).id(), "abcdefghi");
  EXPECT_EQ(chat.messages(1).tool_calls(0).name(), "f");
  EXPECT_EQ(chat.messages(1).tool_calls(0).arguments(), "{\"a\": 1}");
  EXPECT_EQ(chat.messages(2).role(), "tool");
  EXPECT_EQ(chat.messages(2).tool_call_id(), "abcdefghi");
  EXPECT_EQ(chat.messages(2).content(), "42");
  EXPECT_FALSE(chat.messages(3).has_reasoning_content());
  EXPECT_TRUE(chat.has_enable_thinking());
  EXPECT_FALSE(chat.enable_thinking());
  EXPECT_EQ(chat.date_string(), "1 Jan 2026");
  // Order and numbers as json.dumps(json.loads(...)) gives them.
  EXPECT_THAT(chat.tools(),
              testing::ElementsAre(R"({"type": "function", "function": {"name": "f", "b": 1.0, )"
                                   R"("a": [100000.0, 12345678901234567890123]}})"));
}

TEST(OpenAiRequestTest, ToolChoiceNoneOffersNoTools) {
  const OpenAiRequest r =
      Parsed(OpenAiKind::kChat, Chat(R"("tools":[{"type":"function"}],"tool_choice":"none")"));
  EXPECT_EQ(r.prompts[0].chat().tools_size(), 0);
}

// Case tpl-04 and kind message-shape: what has the wrong shape is named.
TEST(OpenAiRequestTest, BadMessagesAreNamed) {
  const auto call = [](const std::string& function) {
    return R"({"role":"assistant","content":null,"tool_calls":[{"id":"i","function":)" + function +
           "}]}";
  };
  const std::pair<const char*, std::string> cases[] = {
      {"messages[0]", "5"},
      {"messages[0].role", R"({"content":"x"})"},
      {"messages[0].role", R"({"role":"function","content":"x"})"},
      {"messages[0].content", R"({"role":"user"})"},
      {"messages[0].content", R"({"role":"user","content":null})"},
      {"messages[0].content", R"({"role":"assistant","content":null})"},
      {"messages[0].content", R"({"role":"assistant","content":null,"tool_calls":[]})"},
      {"messages[0].content", R"({"role":"tool","tool_call_id":"i","content":null})"},
      {"messages[0].tool_call_id", R"({"role":"tool","content":"x"})"},
      {"messages[0].tool_calls", R"({"role":"assistant","tool_calls":{}})"},
      {"messages[0].tool_calls[0]", R"({"role":"assistant","tool_calls":[1]})"},
      {"messages[0].tool_calls[0].id", R"({"role":"assistant","tool_calls":[{}]})"},
      {"messages[0].tool_calls[0].type",
       R"({"role":"assistant","tool_calls":[{"id":"i","type":"x"}]})"},
      {"messages[0].tool_calls[0].function", R"({"role":"assistant","tool_calls":[{"id":"i"}]})"},
      {"messages[0].tool_calls[0].function.name", call(R"({"arguments":"{}"})")},
      {"messages[0].tool_calls[0].function.arguments", call(R"({"name":"f","arguments":null})")},
      {"messages[0].tool_calls[0].function.arguments", call(R"({"name":"f","arguments":{}})")},
      {"messages[0].tool_calls[0].function.arguments", call(R"({"name":"f"})")},
      {"messages[0].tool_calls",
       R"({"role":"user","content":"x","tool_calls":[{"id":"i","function":{"name":"f","arguments":""}}]})"},
      {"messages[0].function_call",
       R"({"role":"assistant","content":"x","function_call":{"name":"f"}})"},
      {"messages[0].reasoning_content",
       R"({"role":"assistant","content":"x","reasoning_content":5})"},
  };
  for (const auto& [param, message] : cases) {
    const ApiError e = Refused(OpenAiKind::kChat, "{\"messages\":[" + message + "]}");
    EXPECT_EQ(e.param, param) << message;
    EXPECT_THAT(e.message, HasSubstr(param)) << message;
  }
  std::string many = "{\"messages\":[";
  for (int i = 0; i <= 16384; ++i) many += R"({"role":"user","content":""},)";
  many.back() = ']';
  EXPECT_THAT(Refused(OpenAiKind::kChat, many + "}").message, HasSubstr("limit of 16384"));
}

// A body within the limit of 8 MiB takes time by its length, however many objects it holds.
TEST(OpenAiRequestTest, AMillionObjectsAreReadInOnePass) {
  std::string body = "{\"messages\":[";
  for (int i = 0; i < 1'000'000; ++i) body += "{},";
  body.back() = ']';
  EXPECT_EQ(Refused(OpenAiKind::kChat, body + "}").param, "messages");
}

TEST(OpenAiRequestTest, DepthIsBounded) {
  const auto nested = [](size_t depth) {
    return Completion(R"("prompt":"x","metadata":)" + std::string(depth - 1, '[') +
                      std::string(depth - 1, ']'));
  };
  Parsed(OpenAiKind::kCompletion, nested(64));
  EXPECT_THAT(Refused(OpenAiKind::kCompletion, nested(65)).message, HasSubstr("deeper than 64"));
}

// Case tpl-07: the switch of the plain route.
TEST(OpenAiRequestTest, ParseSpecialOfACompletion) {
  const auto parsed = [](const char* more) {
    return Parsed(OpenAiKind::kCompletion, Completion(std::string(R"("prompt":"x")") + more))
        .prompts[0];
  };
  EXPECT_FALSE(parsed("").has_parse_special());
  EXPECT_FALSE(parsed(R"(,"parse_special":false)").parse_special());
  EXPECT_TRUE(parsed(R"(,"parse_special":true)").parse_special());
  EXPECT_EQ(Refused(OpenAiKind::kCompletion, Completion(R"("prompt":"x","parse_special":1)")).param,
            "parse_special");
  EXPECT_EQ(Refused(OpenAiKind::kCompletion, Completion(R"("prompt":"x","tools":[{}])")).param,
            "tools");
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
      {"strategy", R"("strategy":5)"},
      {"shared_prefix_tokens", R"("shared_prefix_tokens":-1)"},
      {"stream_options", R"("stream_options":{"include_usage":true})"},
      {"stream_options.include_usage", R"("stream":true,"stream_options":{"include_usage":1})"},
      {"response_format", R"("response_format":{"type":"json_object"})"},
      {"tools", R"("tools":{})"},
      {"tools[0]", R"("tools":["f"])"},
      {"tools[1].type", R"("tools":[{"type":"function"},{}])"},
      {"tools[0].type", R"("tools":[{"type":"web_search"}])"},
      {"functions", R"("functions":[{"name":"f"}])"},
      {"function_call", R"("function_call":{"name":"f"})"},
      {"tool_choice", R"("tool_choice":"required")"},
      {"tool_choice", R"("tool_choice":{"type":"function","function":{"name":"f"}})"},
      {"parallel_tool_calls", R"("tools":[{"type":"function"}],"parallel_tool_calls":false)"},
      {"chat_template", R"("chat_template":"{{ x }}")"},
      {"chat_template_kwargs", R"("chat_template_kwargs":[])"},
      {"chat_template_kwargs.builtin_tools", R"("chat_template_kwargs":{"builtin_tools":[]})"},
      {"chat_template_kwargs.enable_thinking",
       R"("chat_template_kwargs":{"enable_thinking":"no"})"},
      {"continue_final_message", R"("continue_final_message":true)"},
      {"add_generation_prompt", R"("add_generation_prompt":false)"},
      {"add_special_tokens", R"("add_special_tokens":true)"},
      {"parse_special", R"("parse_special":true)"},
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
  EXPECT_EQ(Refused(OpenAiKind::kCompletion, R"({"model":5,"prompt":"x"})").param, "model");
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
