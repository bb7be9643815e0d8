// The OpenAI API over real sockets, in front of a fake backend.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "common/base/strings.h"
#include "tests/router/gateway/gateway_fixture.h"

namespace baton {
namespace {

using nlohmann::json;
using testing::HasSubstr;

std::string ChatBody(const std::string& more = "") {
  return R"({"model":"tiny","messages":[{"role":"user","content":"hi"}])" + more + "}";
}

bool Eventually(const std::function<bool()>& condition) {
  for (int i = 0; i < 500; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return false;
}

// The data of each SSE event; checks the framing.
std::vector<std::string> Events(const std::string& body) {
  std::vector<std::string> events;
  size_t at = 0;
  while (at < body.size()) {
    const size_t end = body.find("\n\n", at);
    if (end == std::string::npos || body.compare(at, 6, "data: ") != 0) {
      ADD_FAILURE() << "not an SSE event: " << body.substr(at, 80);
      break;
    }
    events.push_back(body.substr(at + 6, end - at - 6));
    at = end + 2;
  }
  return events;
}

using GatewayTest = GatewayFixture;

void SayHello(const std::shared_ptr<FakeGeneration>& g) {
  g->Delta("Hel");
  g->Delta("");  // half a character: nothing to show yet
  g->Delta("lo");
  g->Finished(v1::STOP, 10, 3, 8);
}

TEST_F(GatewayTest, WholeChatReply) {
  backend_.script = SayHello;
  const HttpReplyText reply = client_->Post(kChatUrl, ChatBody());
  EXPECT_EQ(reply.status, 200);
  const json body = json::parse(reply.body);
  EXPECT_EQ(body["object"], "chat.completion");
  EXPECT_EQ(body["model"], "tiny");
  EXPECT_EQ(body["id"], "chatcmpl-" + reply.headers.at("x-request-id"));
  ASSERT_EQ(body["choices"].size(), 1u);
  EXPECT_EQ(body["choices"][0]["message"]["role"], "assistant");
  EXPECT_EQ(body["choices"][0]["message"]["content"], "Hello");
  EXPECT_EQ(body["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(body["choices"][0]["logprobs"], nullptr);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 10);
  EXPECT_EQ(body["usage"]["completion_tokens"], 3);
  EXPECT_EQ(body["usage"]["total_tokens"], 13);
  EXPECT_EQ(body["usage"]["prompt_tokens_details"]["cached_tokens"], 8);
  EXPECT_FALSE(body["choices"][0].contains("timing"));
}

TEST_F(GatewayTest, StreamedChat) {
  backend_.script = SayHello;
  const HttpReplyText reply = client_->Post(kChatUrl, ChatBody(R"(,"stream":true)"));
  EXPECT_EQ(reply.status, 200);
  EXPECT_TRUE(reply.complete);
  EXPECT_THAT(reply.headers.at("content-type"), HasSubstr("text/event-stream"));
  const std::vector<std::string> events = Events(reply.body);
  ASSERT_EQ(events.size(), 5u);  // role, two texts, finish, [DONE]
  EXPECT_EQ(events.back(), "[DONE]");
  std::string text;
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const json chunk = json::parse(events[i]);
    EXPECT_EQ(chunk["object"], "chat.completion.chunk");
    EXPECT_FALSE(chunk.contains("usage"));
    const json& choice = chunk["choices"][0];
    if (choice["delta"].contains("content")) text += choice["delta"]["content"];
    EXPECT_EQ(choice["finish_reason"], i == 3 ? json("stop") : json());
  }
  EXPECT_EQ(json::parse(events[0])["choices"][0]["delta"]["role"], "assistant");
  EXPECT_EQ(json::parse(events[3])["choices"][0]["delta"], json::object());
  EXPECT_EQ(text, "Hello");
}

v1::GenerateEvent TwoCalls() {
  v1::GenerateEvent event;
  for (const char* name : {"f", "g"}) {
    v1::ToolCall* call = event.mutable_finished()->add_tool_calls();
    call->set_id(std::string(9, *name));
    call->set_name(name);
    call->set_arguments("{}");
  }
  event.mutable_finished()->set_reason(v1::STOP);
  return event;
}

TEST_F(GatewayTest, ToolCallsOfAWholeReply) {
  std::string text;
  backend_.script = [&](const std::shared_ptr<FakeGeneration>& g) {
    g->Delta(text);
    g->Event(TwoCalls());
    g->End(absl::OkStatus());
  };
  for (const char* said : {"", "Let me see."}) {
    text = said;
    const json body = json::parse(client_->Post(kChatUrl, ChatBody()).body);
    const json& choice = body["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "tool_calls");
    EXPECT_EQ(choice["message"]["content"], text.empty() ? json() : json(text));
    EXPECT_EQ(choice["message"]["tool_calls"], json::parse(R"([
        {"id":"fffffffff","type":"function","function":{"name":"f","arguments":"{}"}},
        {"id":"ggggggggg","type":"function","function":{"name":"g","arguments":"{}"}}])"));
  }
}

TEST_F(GatewayTest, ToolCallsOfAStream) {
  backend_.script = [](const std::shared_ptr<FakeGeneration>& g) {
    g->Event(TwoCalls());
    g->End(absl::OkStatus());
  };
  const auto events = Events(client_->Post(kChatUrl, ChatBody(R"(,"stream":true)")).body);
  ASSERT_EQ(events.size(), 4u);  // role, calls, finish, [DONE]
  const json calls = json::parse(events[1])["choices"][0];
  EXPECT_EQ(calls["finish_reason"], nullptr);
  ASSERT_EQ(calls["delta"]["tool_calls"].size(), 2u);
  EXPECT_EQ(calls["delta"]["tool_calls"][1]["index"], 1);
  EXPECT_EQ(calls["delta"]["tool_calls"][1]["function"]["name"], "g");
  EXPECT_EQ(json::parse(events[2])["choices"][0]["finish_reason"], "tool_calls");
}

TEST_F(GatewayTest, UsageChunkOnlyWhenAskedFor) {
  backend_.script = SayHello;
  for (const char* options :
       {"", R"(,"stream_options":{})", R"(,"stream_options":{"include_usage":false})"}) {
    const HttpReplyText reply =
        client_->Post(kChatUrl, ChatBody(Cat(R"(,"stream":true)", options)));
    EXPECT_EQ(reply.body.find("usage"), std::string::npos) << options;
  }
  const HttpReplyText reply = client_->Post(
      kChatUrl, ChatBody(R"(,"stream":true,"stream_options":{"include_usage":true})"));
  const std::vector<std::string> events = Events(reply.body);
  ASSERT_EQ(events.size(), 6u);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(json::parse(events[i]).at("usage"), nullptr);
  const json last = json::parse(events[4]);
  EXPECT_EQ(last["choices"], json::array());
  EXPECT_EQ(last["usage"]["completion_tokens"], 3);
  EXPECT_EQ(last["usage"]["prompt_tokens_details"]["cached_tokens"], 8);
  EXPECT_EQ(events[5], "[DONE]");
}

TEST_F(GatewayTest, ChoicesAreIndependentGenerationsWithSeedsCountedUp) {
  backend_.script = [](const std::shared_ptr<FakeGeneration>& g) {
    g->Delta(Cat("seed ", g->request.sampling().seed()));
    g->Finished(g->request.sampling().seed() == 8 ? v1::LENGTH : v1::STOP, 10, 2);
  };
  const json body = json::parse(client_->Post(kChatUrl, ChatBody(R"(,"n":3,"seed":7)")).body);
  ASSERT_EQ(body["choices"].size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(body["choices"][i]["index"], i);
    EXPECT_EQ(body["choices"][i]["message"]["content"], Cat("seed ", 7 + i));
    EXPECT_EQ(body["choices"][i]["finish_reason"], i == 1 ? "length" : "stop");
  }
  EXPECT_EQ(body["usage"]["prompt_tokens"], 10);
  EXPECT_EQ(body["usage"]["completion_tokens"], 6);
}

TEST_F(GatewayTest, StreamedChoicesEndOnceEach) {
  client_->Request("POST", kChatUrl, ChatBody(R"(,"n":2,"stream":true)"));
  auto first = backend_.At(0);
  auto second = backend_.At(1);
  ASSERT_TRUE(first && second);
  second->Delta("b1");
  first->Delta("a1");
  first->Finished(v1::STOP, 5, 1);
  second->Delta("b2");
  second->Finished(v1::LENGTH, 5, 2);
  const std::vector<std::string> events = Events(client_->Read().body);
  std::string text[2];
  int finishes[2] = {0, 0};
  for (size_t i = 0; i + 1 < events.size(); ++i) {
    const json choice = json::parse(events[i])["choices"][0];
    const int index = choice["index"];
    EXPECT_EQ(finishes[index], 0) << "something after the end of choice " << index;
    if (choice["delta"].contains("content")) text[index] += choice["delta"]["content"];
    if (!choice["finish_reason"].is_null()) ++finishes[index];
  }
  EXPECT_EQ(text[0], "a1");
  EXPECT_EQ(text[1], "b1b2");
  EXPECT_EQ(finishes[0] + finishes[1], 2);
  EXPECT_EQ(events.back(), "[DONE]");
}

TEST_F(GatewayTest, CompletionsOfSeveralPromptsWithEcho) {
  backend_.script = [](const std::shared_ptr<FakeGeneration>& g) {
    g->Delta("!");
    g->Finished(v1::LENGTH, 3, 1);
  };
  const json body = json::parse(
      client_->Post(kCompletionsUrl, R"({"prompt":["one","two"],"n":2,"echo":true})").body);
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["model"], "tiny");
  ASSERT_EQ(body["choices"].size(), 4u);
  EXPECT_EQ(body["choices"][0]["text"], "one!");
  EXPECT_EQ(body["choices"][1]["text"], "one!");
  EXPECT_EQ(body["choices"][2]["text"], "two!");
  EXPECT_EQ(body["choices"][3]["index"], 3);
  EXPECT_EQ(body["usage"]["prompt_tokens"], 6);
  EXPECT_EQ(body["usage"]["completion_tokens"], 4);
  const std::vector<std::string> events =
      Events(client_->Post(kCompletionsUrl, R"({"prompt":"one","echo":true,"stream":true})").body);
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(json::parse(events[0])["choices"][0]["text"], "one");
  EXPECT_EQ(json::parse(events[1])["choices"][0]["text"], "!");
}

TEST_F(GatewayTest, LogprobsOfBothKinds) {
  backend_.script = [](const std::shared_ptr<FakeGeneration>& g) {
    g->Delta("hé");
    g->Finished(v1::STOP, 3, 1);
  };
  const json chat =
      json::parse(client_->Post(kChatUrl, ChatBody(R"(,"logprobs":true,"top_logprobs":1)")).body);
  const json& token = chat["choices"][0]["logprobs"]["content"][0];
  EXPECT_EQ(token["token"], "hé");
  EXPECT_EQ(token["logprob"], -0.5);
  EXPECT_EQ(token["bytes"], json({0x68, 0xc3, 0xa9}));
  EXPECT_EQ(token["top_logprobs"][0]["token"], "\xef\xbf\xbd");
  EXPECT_EQ(token["top_logprobs"][0]["bytes"], json::array({0xe2}));
  const json text =
      json::parse(client_->Post(kCompletionsUrl, R"({"prompt":"x","logprobs":1})").body);
  const json& logprobs = text["choices"][0]["logprobs"];
  EXPECT_EQ(logprobs["tokens"], json::array({"hé"}));
  EXPECT_EQ(logprobs["token_logprobs"], json::array({-0.5}));
  EXPECT_EQ(logprobs["text_offset"], json::array({0}));
  EXPECT_EQ(logprobs["top_logprobs"][0]["bytes:\\xe2"], -1.5);
}

TEST_F(GatewayTest, TimingOnlyWhenAskedFor) {
  backend_.script = SayHello;
  const json body =
      json::parse(client_->Post(kChatUrl, ChatBody(R"(,"include_timing":true)")).body);
  EXPECT_EQ(body["choices"][0]["timing"]["ttft_s"], 0.25);
  EXPECT_TRUE(backend_.At(0)->request.want_timing());
}

TEST_F(GatewayTest, BackendErrorsBecomeOpenAiErrors) {
  const struct {
    absl::Status status;
    int http;
    json code;
    json param;
  } cases[] = {
      {absl::InvalidArgumentError("temperature: 5 is outside [0, 2]"), 400, nullptr, "temperature"},
      {absl::NotFoundError("model: 'x' is unknown"), 404, "model_not_found", "model"},
      {WithRetryAfter(absl::ResourceExhaustedError("busy"), absl::Milliseconds(2500)), 429,
       "rate_limit_exceeded", nullptr},
      {absl::UnavailableError("no node"), 503, "service_unavailable", nullptr},
      {absl::DeadlineExceededError("late"), 504, "timeout", nullptr},
      {absl::InternalError("broken"), 500, nullptr, nullptr},
  };
  for (const auto& c : cases) {
    for (const char* stream : {"false", "true"}) {
      backend_.script = [&](const std::shared_ptr<FakeGeneration>& g) { g->End(c.status); };
      const HttpReplyText reply = client_->Post(kChatUrl, ChatBody(Cat(R"(,"stream":)", stream)));
      EXPECT_EQ(reply.status, c.http);
      const json error = json::parse(reply.body)["error"];
      EXPECT_EQ(error["message"], std::string(c.status.message()));
      EXPECT_EQ(error["code"], c.code);
      EXPECT_EQ(error["param"], c.param);
      EXPECT_TRUE(error["type"].is_string());
      EXPECT_EQ(reply.headers.count("retry-after"), c.http == 429 ? 1u : 0u);
      if (c.http == 429) {
        EXPECT_EQ(reply.headers.at("retry-after"), "3");
      }
    }
  }
}

TEST_F(GatewayTest, FailureAfterTheStreamBeganIsOneErrorEventAndNoDone) {
  client_->Request("POST", kChatUrl, ChatBody(R"(,"n":2,"stream":true)"));
  auto first = backend_.At(0);
  auto second = backend_.At(1);
  ASSERT_TRUE(first && second);
  first->Delta("a");
  first->End(absl::UnavailableError("the node died"));
  const HttpReplyText reply = client_->Read();
  EXPECT_FALSE(reply.complete);  // a client can't take it for a whole reply
  const std::vector<std::string> events = Events(reply.body);
  ASSERT_EQ(events.size(), 3u);
  EXPECT_EQ(json::parse(events[2])["error"]["message"], "the node died");
  EXPECT_TRUE(second->cancelled.load());
  EXPECT_TRUE(client_->ClosedWithin(3000));
}

TEST_F(GatewayTest, ClientThatGoesAwayCancelsEverything) {
  for (const char* stream : {"true", "false"}) {
    const size_t before = stream[0] == 't' ? 0 : 2;
    HttpClient client(server_->port());
    client.Request("POST", kChatUrl, ChatBody(Cat(R"(,"n":2,"stream":)", stream)));
    auto first = backend_.At(before);
    auto second = backend_.At(before + 1);
    ASSERT_TRUE(first && second);
    first->Delta("a");
    client.Close();
    EXPECT_TRUE(Eventually([&] { return first->cancelled && second->cancelled; })) << stream;
  }
}

TEST_F(GatewayTest, ClientThatReadsNothingIsCutOff) {
  client_->Request("POST", kChatUrl, ChatBody(R"(,"stream":true)"));
  auto generation = backend_.At(0);
  ASSERT_TRUE(generation);
  const std::string text(100000, 'x');
  EXPECT_TRUE(Eventually([&] {
    for (int i = 0; i < 100; ++i) {
      if (!generation->Delta(text)) return true;
    }
    return false;
  }));
  EXPECT_TRUE(generation->cancelled.load());
}

TEST_F(GatewayTest, ModelsHealthReadinessMetrics) {
  const json list = json::parse(client_->Get("/v1/models").body);
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["data"][0]["id"], "tiny");
  EXPECT_EQ(list["data"][0]["object"], "model");
  EXPECT_EQ(list["data"][0]["max_model_len"], 2048);
  EXPECT_EQ(json::parse(client_->Get("/v1/models/tiny").body)["id"], "tiny");
  const HttpReplyText missing = client_->Get("/v1/models/nope");
  EXPECT_EQ(missing.status, 404);
  EXPECT_EQ(json::parse(missing.body)["error"]["code"], "model_not_found");
  EXPECT_EQ(client_->Get("/health").status, 200);
  EXPECT_EQ(client_->Get("/readyz").status, 200);
  backend_.ready = false;
  EXPECT_EQ(client_->Get("/readyz").status, 503);
  EXPECT_EQ(client_->Get("/health").status, 200);
  backend_.ready = true;
  service_->StartDraining();
  EXPECT_EQ(client_->Get("/readyz").status, 503);
  EXPECT_EQ(client_->Post(kChatUrl, ChatBody()).status, 503);
  Counter counter = registry_.AddCounter("baton_test_total", "A test.");
  counter.Increment();
  EXPECT_THAT(client_->Get("/metrics").body, HasSubstr("baton_test_total 1"));
}

TEST_F(GatewayTest, UnknownPathsAndMethods) {
  HttpReplyText reply = client_->Post("/v1/nothing", "{}");
  EXPECT_EQ(reply.status, 404);
  EXPECT_TRUE(json::parse(reply.body).contains("error"));
  reply = client_->Get(kChatUrl);
  EXPECT_EQ(reply.status, 405);
  EXPECT_EQ(reply.headers.at("allow"), "POST");
  EXPECT_EQ(client_->Post("/v1/models", "{}").status, 405);
  client_->Request("HEAD", "/health");
  EXPECT_EQ(client_->Read(/*head_only=*/true).status, 200);
  EXPECT_EQ(client_->Get("/health").status, 200) << "HEAD left a body in the connection";
}

TEST_F(GatewayTest, RequestIdIsHonouredWhenItIsSane) {
  backend_.script = SayHello;
  client_->Request("POST", kChatUrl, ChatBody(), "x-request-id: my-id.1\r\n");
  EXPECT_EQ(client_->Read().headers.at("x-request-id"), "my-id.1");
  EXPECT_EQ(backend_.At(0)->info.request_id, "my-id.1");
  client_->Request("POST", kChatUrl, ChatBody(), "x-request-id: no spaces!\r\n");
  EXPECT_EQ(client_->Read().headers.at("x-request-id").size(), 32u);
}

}  // namespace
}  // namespace baton
