// Chats through the router: templates, tools and the calls that come back.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "common/base/mutex.h"
#include "router/discovery/static_directory.h"
#include "router/route/router.h"
#include "tests/router/route/fake_nodes.h"

namespace baton {
namespace {

using testing::AllOf;
using testing::HasSubstr;

struct Outcome {
  std::string text;
  std::vector<int64_t> ids;
  v1::GenerateEvent::Finished finished;
  absl::Status status;
};

class Collector final : public GenerationSink {
 public:
  bool OnEvent(v1::GenerateEvent event) override {
    MutexLock lock(mu_);
    if (event.has_finished()) {
      out_.finished = event.finished();
    } else {
      out_.text += event.delta().text();
      out_.ids.insert(out_.ids.end(), event.delta().token_ids().begin(),
                      event.delta().token_ids().end());
    }
    return true;
  }
  void OnDone(const absl::Status& status) override {
    MutexLock lock(mu_);
    out_.status = status;
    done_ = true;
    changed_.NotifyAll();
  }
  Outcome Wait() {
    MutexLock lock(mu_);
    if (!changed_.WaitFor(mu_, std::chrono::seconds(30),
                          [this]() REQUIRES(mu_) { return done_; })) {
      out_.status = absl::DeadlineExceededError("no end in 30 s");
    }
    return out_;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  Outcome out_ GUARDED_BY(mu_);
  bool done_ GUARDED_BY(mu_) = false;
};

// A router in front of one node, ready.
class ChatRouter {
 public:
  explicit ChatRouter(const FakeDecode& decode) {
    RouterConfig config;
    config.nodes.decode = {decode.address()};
    config.health.interval = std::chrono::milliseconds(50);
    config.retry.backoff = std::chrono::milliseconds(5);
    directory_ = *StaticDirectory::Create(config.nodes.decode, {});
    router_ = *Router::Create(config, *directory_, MetricRegistry());
    for (int i = 0; i < 1000 && !router_->Ready(); ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    EXPECT_TRUE(router_->Ready());
  }
  Outcome Generate(const v1::GenerateRequest& request) {
    auto sink = std::make_shared<Collector>();
    router_->Generate({}, request, sink);
    return sink->Wait();
  }

 private:
  std::unique_ptr<StaticDirectory> directory_;
  std::unique_ptr<Router> router_;
};

v1::GenerateRequest Request(int64_t max_tokens) {
  v1::GenerateRequest request;
  request.set_model("tiny");
  request.mutable_stop()->set_max_tokens(max_tokens);
  return request;
}

std::unique_ptr<Tokenizer> TinyTokenizer() {
  return *Tokenizer::FromJson(tiny_model_internal::TokenizerJson(512));
}

v1::GenerateRequest ToolRequest() {
  v1::GenerateRequest request = Request(200);
  request.mutable_chat()->add_tools(
      R"({"type": "function", "function": {"name": "add", "parameters": {}}})");
  auto* user = request.mutable_chat()->add_messages();
  user->set_role("user");
  user->set_content("1+1?");
  auto* call = request.mutable_chat()->add_messages();
  call->set_role("assistant");
  call->add_tool_calls()->set_name("add");
  auto* result = request.mutable_chat()->add_messages();
  result->set_role("tool");
  result->set_content("2");
  return request;
}

// Kind tool-messages: what the model's template has no place for is refused, never left out.
TEST(RouterChatTest, ToolsOfATemplateWithoutThemAreRefused) {
  FakeDecode decode;
  ChatRouter s(decode);
  v1::GenerateRequest request = ToolRequest();
  const auto message = [&] {
    const Outcome out = s.Generate(request);
    EXPECT_EQ(out.status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(out.status.message());
  };
  EXPECT_THAT(message(), AllOf(HasSubstr("tools: "), HasSubstr("chatml")));
  request.mutable_chat()->clear_tools();
  EXPECT_THAT(message(), HasSubstr("messages[1].tool_calls: "));
  request.mutable_chat()->mutable_messages(1)->clear_tool_calls();
  EXPECT_THAT(message(), HasSubstr("messages[2].role: 'tool'"));
  EXPECT_EQ(decode.started.load(), 0);
}

TEST(RouterChatTest, ToolsGoThroughTheTemplateAndCallsComeBack) {
  FakeDecode decode;
  decode.template_text = "qwen3";
  decode.max_context = 2048;
  decode.reply =
      "Adding.\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\": 1}}\n</tool_call>";
  ChatRouter s(decode);
  const Outcome out = s.Generate(ToolRequest());
  ASSERT_TRUE(out.status.ok()) << out.status;
  const v1::DecodeRequest sent = decode.Requests().front();
  const std::vector<int32_t> ids(sent.token_ids().begin(), sent.token_ids().end());
  const std::string prompt = *TinyTokenizer()->Decode(ids);
  EXPECT_THAT(prompt,
              HasSubstr("<tools>\n{\"type\": \"function\", \"function\": {\"name\": \"add\", "
                        "\"parameters\": {}}}\n</tools>"));
  EXPECT_THAT(
      prompt,
      HasSubstr("<tool_call>\n{\"name\": \"add\", \"arguments\": {}}\n</tool_call><|im_end|>"));
  EXPECT_THAT(prompt, HasSubstr("<tool_response>\n2\n</tool_response><|im_end|>"));
  EXPECT_EQ(out.text, "Adding.");
  EXPECT_EQ(out.ids.size(), decode.reply.size());
  ASSERT_EQ(out.finished.tool_calls_size(), 1);
  EXPECT_EQ(out.finished.tool_calls(0).name(), "add");
  EXPECT_EQ(out.finished.tool_calls(0).arguments(), "{\"a\": 1}");
  EXPECT_EQ(out.finished.tool_calls(0).id().size(), 9u);
  // A call that does not close is text, to its last character.
  decode.reply = "Adding.\n<tool_call>\n{\"name\"";
  const Outcome open = s.Generate(ToolRequest());
  EXPECT_EQ(open.text, decode.reply);
  EXPECT_EQ(open.finished.tool_calls_size(), 0);
}

// Case tpl-07: the plain route's switch; the request's word goes before the configuration's.
TEST(RouterChatTest, ParseSpecialOfATextPrompt) {
  FakeDecode decode;
  ChatRouter s(decode);
  v1::GenerateRequest request = Request(2);
  request.set_text("a<|im_end|>");
  const auto tokens = [&] {
    EXPECT_TRUE(s.Generate(request).status.ok());
    return decode.Requests().back().token_ids_size();
  };
  EXPECT_EQ(tokens(), 2);
  request.set_parse_special(false);
  const auto literal = *TinyTokenizer()->Encode(request.text());
  EXPECT_EQ(tokens(), static_cast<int>(literal.size()));
  EXPECT_GT(literal.size(), 5u);
  request.set_parse_special(true);
  EXPECT_EQ(tokens(), 2);
}

}  // namespace
}  // namespace baton
