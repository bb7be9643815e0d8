// Every field over HTTP: honoured, refused by name, or named as ignored.
#include <gmock/gmock.h>

#include "common/base/strings.h"
#include "router/gateway/openai_request.h"
#include "tests/router/gateway/gateway_fixture.h"

namespace baton {
namespace {

using nlohmann::json;
using testing::HasSubstr;

class FieldsTest : public GatewayFixture {
 protected:
  void SetUp() override {
    GatewayFixture::SetUp();
    backend_.script = [](const std::shared_ptr<FakeGeneration>& g) {
      g->Delta("ok.");
      g->Finished(v1::STOP, 3, 1);
    };
  }
  void ExpectRefused(const HttpReplyText& reply, const std::string& param) {
    EXPECT_EQ(reply.status, 400) << reply.body;
    const json error = json::parse(reply.body)["error"];
    EXPECT_EQ(error["param"], param) << reply.body;
    EXPECT_THAT(error["message"].get<std::string>(), HasSubstr(param));
  }
};

// Cases api-05 and api-01: nothing is accepted and dropped.
TEST_F(FieldsTest, WhatIsNotHonouredIsRefusedByName) {
  const std::pair<const char*, const char*> fields[] = {
      {"best_of", "2"},
      {"suffix", R"("end")"},
      {"response_format", R"({"type":"json_object"})"},
      {"response_format", R"({"type":"json_schema","json_schema":{}})"},
      {"response_format", R"({"type":"grammar"})"},
      {"guided_json", R"({"type":"object"})"},
      {"guided_regex", R"("a+")"},
      {"guided_choice", R"(["a"])"},
      {"guided_grammar", R"("root ::= x")"},
      {"structured_outputs", R"({"json":{}})"},
      {"json_schema", R"("{}")"},
      {"use_beam_search", "true"},
      {"length_penalty", "0.5"},
      {"early_stopping", "true"},
      {"typical_p", "0.5"},
      {"bad_words", R"(["x"])"},
      {"allowed_token_ids", "[1]"},
      {"include_stop_str_in_output", "true"},
      {"skip_special_tokens", "false"},
      {"truncate_prompt_tokens", "5"},
      {"prompt_logprobs", "1"},
  };
  for (const auto& [key, value] : fields) {
    const std::string field = Cat("\"", key, "\":", value);
    ExpectRefused(Complete(Cat(R"("prompt":"x",)", field)), key);
    ExpectRefused(Chat(field), key);
  }
  // The same fields with the value that changes nothing.
  const HttpReplyText neutral = Complete(
      R"("prompt":"x","best_of":1,"suffix":null,"response_format":{"type":"text"},"bad_words":[],)"
      R"("skip_special_tokens":true,"length_penalty":1.0,"use_beam_search":false)");
  EXPECT_EQ(neutral.status, 200) << neutral.body;
  EXPECT_EQ(neutral.headers.count("x-baton-ignored-fields"), 0u);
}

TEST_F(FieldsTest, WhatNobodyKnowsIsNamedInTheReply) {
  for (const char* stream : {"false", "true"}) {
    const HttpReplyText reply = Chat(
        Cat(R"("foo":1,"temperatur\u0065x":0.5,"user":"u","metadata":{},"store":false,"stream":)",
            stream));
    EXPECT_EQ(reply.status, 200);
    EXPECT_EQ(reply.headers.at("x-baton-ignored-fields"), "foo, temperaturex");
  }
  const HttpReplyText evil = Chat(R"("a\r\nset-cookie: x":1)");
  EXPECT_EQ(evil.headers.count("set-cookie"), 0u);
  EXPECT_EQ(evil.headers.at("x-baton-ignored-fields"), "a??set-cookie??x");
}

// Case api-02 and its kind: every number, in every wrong shape.
TEST_F(FieldsTest, NumbersOfTheWrongShapeAreNamed) {
  for (const char* key : {"temperature", "top_p", "min_p", "presence_penalty", "frequency_penalty",
                          "repetition_penalty"}) {
    for (const char* value : {R"("1")", "true", "[1]", "{}", R"("NaN")"}) {
      ExpectRefused(Complete(Cat(R"("prompt":"x",")", key, "\":", value)), key);
    }
    for (const char* value : {"NaN", "Infinity", "-Infinity", "1e999", "0x10", "01", "+1", ".5"}) {
      EXPECT_EQ(Complete(Cat(R"("prompt":"x",")", key, "\":", value)).status, 400) << value;
    }
  }
  for (const char* key :
       {"max_tokens", "max_completion_tokens", "min_tokens", "top_k", "seed", "n", "best_of",
        "priority", "shared_prefix_tokens", "handoff_seam", "logprobs"}) {
    for (const char* value : {R"("1")", "true", "1.5", "[1]", "1e3", "18446744073709551615",
                              "99999999999999999999999"}) {
      ExpectRefused(Complete(Cat(R"("prompt":"x",")", key, "\":", value)), key);
    }
  }
  for (const char* key : {"stream", "ignore_eos", "include_timing", "echo"}) {
    for (const char* value : {R"("true")", "1", "[]"}) {
      ExpectRefused(Complete(Cat(R"("prompt":"x",")", key, "\":", value)), key);
    }
  }
  for (const char* value : {"-1", "17", "9223372036854775807", "-9223372036854775808"}) {
    ExpectRefused(Complete(Cat(R"("prompt":"x","n":)", value)), "n");
  }
  for (const char* value : {"-1", "21", "2147483648"}) {
    ExpectRefused(Complete(Cat(R"("prompt":"x","logprobs":)", value)), "logprobs");
  }
  for (const char* value : {"2147483648", "-2147483649"}) {
    ExpectRefused(Complete(Cat(R"("prompt":"x","top_k":)", value)), "top_k");
    ExpectRefused(Complete(Cat(R"("prompt":"x","priority":)", value)), "priority");
  }
  for (const char* value : {"[1.5]", R"(["1"])", "[true]", "5", "[18446744073709551615]"}) {
    ExpectRefused(Complete(Cat(R"("prompt":"x","stop_token_ids":)", value)), "stop_token_ids");
  }
}

// Case api-02: a key is an id as it is written, once.
TEST_F(FieldsTest, LogitBiasKeysAreTokenIds) {
  for (const char* bias : {R"({"abc":1})", R"({" 5":1})", R"({"+5":1})", R"({"05":1})",
                           R"({"5.0":1})", R"({"":1})", R"({"5":"1"})", R"({"5":null})",
                           R"({"5":true})", R"({"99999999999999999999":1})", "[]", R"("5")"}) {
    ExpectRefused(Complete(Cat(R"("prompt":"x","logit_bias":)", bias)), "logit_bias");
  }
  EXPECT_EQ(Complete(R"("prompt":"x","logit_bias":{"33203":-100,"-1":0.5})").status, 200);
  const v1::SamplingParams& sampling = backend_.At(0)->request.sampling();
  EXPECT_EQ(sampling.logit_bias().at(33203), -100);
  EXPECT_EQ(sampling.logit_bias().at(-1), 0.5) << "the backend knows the vocabulary and refuses it";
}

TEST_F(FieldsTest, AKeyTwiceIsRefused) {
  for (const char* body :
       {R"({"prompt":"x","temperature":0,"temperature":1})", R"({"prompt":"x","prompt":"y"})",
        R"({"prompt":"x","logit_bias":{"5":1,"5":-1}})", R"({"prompt":"x","":1,"":2})",
        R"({"prompt":"x","te\u006dperature":0,"temperature":1})"}) {
    const HttpReplyText reply = client_->Post(kCompletionsUrl, body);
    EXPECT_EQ(reply.status, 400) << body;
    EXPECT_THAT(reply.body, HasSubstr("twice")) << body;
  }
  // The same key in different objects is no repetition.
  EXPECT_EQ(Chat(R"("metadata":{"a":1,"b":{"a":1}},"user":"a")").status, 200);
}

// Case api-01 at this level: what comes to the backend, which refuses the empty text.
TEST_F(FieldsTest, StopListsComeThroughAsTheyAre) {
  EXPECT_EQ(Complete(R"("prompt":"x","stop":["","END"])").status, 200);
  EXPECT_THAT(backend_.At(0)->request.stop().stop(), testing::ElementsAre("", "END"));
  const json absent = json::parse(Complete(R"("prompt":"x")").body);
  for (const char* stop : {"[]", "null"}) {
    json body = json::parse(Complete(Cat(R"("prompt":"x","stop":)", stop)).body);
    for (const char* key : {"id", "created"}) body[key] = absent[key];
    EXPECT_EQ(body, absent);
  }
  EXPECT_EQ(backend_.At(2)->request.stop().stop_size(), 0);
  ExpectRefused(Complete(R"("prompt":"x","stop":["a",null])"), "stop");
  ExpectRefused(Complete(R"("prompt":"x","stop":{"a":1})"), "stop");
}

// Case str-08: three choices in one stream, each its own.
TEST_F(FieldsTest, ChoicesOfAStreamEndOnceEachAndEqualTheWholeReply) {
  backend_.script = [](const std::shared_ptr<FakeGeneration>& g) {
    const auto last = static_cast<int>(g->request.sampling().seed() % 3);
    for (int i = 0; i <= last; ++i) g->Delta(Cat("c", g->request.sampling().seed(), i));
    g->Finished(last == 1 ? v1::LENGTH : v1::STOP, 5, last + 1);
  };
  const json whole =
      json::parse(Complete(R"("prompt":"x","n":3,"seed":1,"temperature":1,"stop":["."])").body);
  std::string text[3];
  json finish[3];
  for (
      const json& chunk : Chunks(Complete(
          R"("prompt":"x","n":3,"seed":1,"stop":["."],"stream":true,"stream_options":{"include_usage":true})"))) {
    if (chunk["choices"].empty()) {
      EXPECT_EQ(chunk["usage"], whole["usage"]);
      continue;
    }
    ASSERT_EQ(chunk["choices"].size(), 1u);
    const json& choice = chunk["choices"][0];
    const int index = choice["index"];
    ASSERT_TRUE(index >= 0 && index < 3);
    EXPECT_TRUE(finish[index].is_null()) << "something after the end of choice " << index;
    text[index] += choice["text"].get<std::string>();
    finish[index] = choice["finish_reason"];
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(text[i], whole["choices"][i]["text"]);
    EXPECT_EQ(finish[i], whole["choices"][i]["finish_reason"]);
  }
  EXPECT_EQ(whole["usage"]["completion_tokens"], 2 + 3 + 1);
}

// Case str-09: usage only when asked for, and options without a stream are refused.
TEST_F(FieldsTest, StreamOptions) {
  for (const char* options : {"", R"(,"stream_options":null)", R"(,"stream_options":{})",
                              R"(,"stream_options":{"include_usage":false})",
                              R"(,"stream_options":{"include_usage":null})"}) {
    for (const json& chunk : Chunks(Complete(Cat(R"("prompt":"x","stream":true)", options)))) {
      EXPECT_EQ(chunk["choices"].size(), 1u) << options;
      EXPECT_FALSE(chunk.contains("usage")) << options;
    }
  }
  const auto chunks =
      Chunks(Complete(R"("prompt":"x","stream":true,"stream_options":{"include_usage":true})"));
  ASSERT_FALSE(chunks.empty());
  EXPECT_EQ(chunks.back()["choices"], json::array());
  EXPECT_EQ(chunks.back()["usage"]["completion_tokens"], 1);
  for (const char* stream : {"", R"("stream":false,)", R"("stream":null,)"}) {
    ExpectRefused(
        Complete(Cat(R"("prompt":"x",)", stream, R"("stream_options":{"include_usage":true})")),
        "stream_options");
  }
  ExpectRefused(Complete(R"("prompt":"x","stream":true,"stream_options":true)"), "stream_options");
  ExpectRefused(Complete(R"("prompt":"x","stream":true,"stream_options":{"include_usage":"yes"})"),
                "stream_options.include_usage");
}

// Case str-10, the HTTP half: the open event is closed, then comes one error event and the end.
TEST_F(FieldsTest, AFailureInAStreamIsAnEventOfItsOwn) {
  for (const int deltas : {1, 5}) {
    backend_.script = [deltas](const std::shared_ptr<FakeGeneration>& g) {
      for (int i = 0; i < deltas; ++i) g->Delta(Cat("piece ", i, "\n\ndata: [DONE]\n\n"));
      g->End(absl::UnavailableError("the decode node died"));
    };
    HttpClient client(server_->port());
    client.Request("POST", kCompletionsUrl, R"({"prompt":"x","stream":true})");
    const HttpReplyText reply = client.Read();
    EXPECT_FALSE(reply.complete) << "a client could take it for a whole reply";
    const auto chunks = Chunks(reply);
    ASSERT_EQ(chunks.size(), static_cast<size_t>(deltas) + 1);
    for (int i = 0; i < deltas; ++i) {
      EXPECT_EQ(chunks[static_cast<size_t>(i)]["choices"][0]["finish_reason"], nullptr);
    }
    EXPECT_EQ(chunks.back()["error"]["message"], "the decode node died");
    EXPECT_EQ(chunks.back()["error"]["type"], "server_error");
    EXPECT_FALSE(chunks.back().contains("choices"));
  }
}

TEST_F(FieldsTest, ListsAreBounded) {
  std::string prompts = "[\"a\"";
  for (int i = 0; i < 128; ++i) prompts += ",\"a\"";
  ExpectRefused(Complete(Cat(R"("prompt":)", prompts, "]")), "prompt");
  ExpectRefused(Complete(R"("prompt":["a","b","c","d","e","f","g","h","i"],"n":16)"), "n");
}

}  // namespace
}  // namespace baton
