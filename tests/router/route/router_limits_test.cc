// What the router does when nodes are full, prompts are scored, assets don't come, and who may ask.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/strings.h"
#include "router/gateway/api_keys.h"
#include "tests/router/route/test_router.h"

namespace baton {
namespace {

TEST(RouterLimitsTest, AFullNodeIsPassedOverAndOnlyWhenAllAreFullTheClientHears) {
  FakeDecode full;
  FakeDecode other;
  full.fail_after = 0;
  full.failure = absl::ResourceExhaustedError("9 requests are waiting");
  TestRouter s({full.address(), other.address()}, {},
               [](RouterConfig& c) { c.policy.decode = PolicyKind::kRoundRobin; });
  s.WaitReady();
  ASSERT_TRUE(AllAnswered(s, 2));
  for (int i = 0; i < 10; ++i) {
    const Outcome out = s.Generate(TestRouter::Request());
    EXPECT_TRUE(out.status.ok()) << out.status.error_message();
    EXPECT_EQ(out.text, LettersFrom(0, 10));
  }
  EXPECT_GT(full.started.load(), 0);
  EXPECT_EQ(other.started.load(), 10);
  other.fail_after = 0;
  other.failure = full.failure;
  const int before = full.started + other.started;
  const Outcome out = s.Generate(TestRouter::Request());
  EXPECT_EQ(out.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_EQ(out.status.error_message(), "9 requests are waiting");
  EXPECT_EQ(full.started + other.started, before + 2) << "each node is asked once";
  EXPECT_TRUE(s.router->Ready()) << "a refusal opened the breaker";
  EXPECT_TRUE(s.Idle());
}

TEST(RouterLimitsTest, AReplayThatMeetsAFullNodeGoesToTheNext) {
  FakeDecode dies;
  FakeDecode full;
  FakeDecode other;
  dies.fail_after = 4;
  full.fail_after = 0;
  full.failure = absl::ResourceExhaustedError("full");
  TestRouter s({dies.address(), full.address(), other.address()}, {},
               [](RouterConfig& c) { c.policy.decode = PolicyKind::kRoundRobin; });
  s.WaitReady();
  ASSERT_TRUE(AllAnswered(s, 3));
  for (int i = 0; i < 6; ++i) {
    const Outcome out = s.Generate(TestRouter::Request(20));
    EXPECT_TRUE(out.status.ok()) << out.status.error_message();
    EXPECT_EQ(out.text, LettersFrom(0, 20));
  }
  EXPECT_GT(dies.started.load(), 0);
}

// Case lp-01: scores pass through once each, also when the node that gave them dies.
TEST(RouterLimitsTest, PromptLogprobsComeOnceEach) {
  for (const int fail_at : {-1, 0, 1, 4, 5}) {
    FakeDecode a;
    FakeDecode b;
    a.fail_after_scores = b.fail_after_scores = fail_at;
    TestRouter s({a.address(), b.address()});
    s.WaitReady();
    for (const int64_t max_tokens : {0, 3}) {
      v1::GenerateRequest request = TestRouter::Request(max_tokens);
      request.mutable_tokens()->mutable_ids()->Add(7);
      for (int64_t id : {8, 9, 10, 11}) request.mutable_tokens()->add_ids(id);
      request.mutable_sampling()->set_logprobs(true);
      request.mutable_sampling()->set_prompt_logprobs(true);
      const Outcome out = s.Generate(request);
      ASSERT_TRUE(out.status.ok()) << out.status.error_message();
      ASSERT_EQ(out.scores.size(), 5u) << fail_at;
      for (int i = 0; i < 5; ++i) {
        EXPECT_EQ(out.scores[i].chosen().token_id(), 7 + i);
        EXPECT_EQ(out.scores[i].chosen().has_logprob(), i > 0);
        if (i > 0) {
          EXPECT_EQ(out.scores[i].chosen().logprob(), static_cast<float>(-i));
        }
      }
      EXPECT_EQ(out.text, LettersFrom(0, max_tokens));
      EXPECT_EQ(out.finished.reason(), v1::LENGTH);
    }
    EXPECT_TRUE(s.Idle());
  }
}

TEST(RouterLimitsTest, AnAssetThatNeverComesDoesNotHoldUpTheEnd) {
  FakeDecode decode;
  decode.hang_assets = true;
  auto s = std::make_unique<TestRouter>(std::vector<std::string>{decode.address()});
  ASSERT_TRUE(AllAnswered(*s, 1));
  Outcome out;
  std::thread client([&, router = s.get()] { out = router->Generate(TestRouter::Request()); });
  ASSERT_TRUE(Eventually([&] { return s->router->inflight() == 1; }));
  const absl::Time start = absl::Now();
  s->router.reset();
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  client.join();
  EXPECT_EQ(out.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_EQ(out.status.error_message(), "the router is shutting down");
}

// Counts how it ended; its generation can be cancelled at the first token.
class CountingSink final : public GenerationSink {
 public:
  explicit CountingSink(bool stay) : stay_(stay) {}
  bool OnEvent(v1::GenerateEvent) override { return stay_; }
  void OnDone(const absl::Status& status) override {
    code.store(static_cast<int>(status.code()));
    done.store(true);
  }
  std::atomic<bool> done{false};
  std::atomic<int> code{-1};

 private:
  const bool stay_;
};

// Case rt-01: every kind of prompt and every end is counted, up and down; nodes stay about equally
// loaded all the while (of two choices the less loaded one is taken).
TEST(RouterLimitsTest, LoadIsCountedForEveryEntryAndEveryEnd) {
  std::vector<std::unique_ptr<FakeDecode>> nodes;
  std::vector<std::string> addresses;
  for (int i = 0; i < 4; ++i) {
    nodes.push_back(std::make_unique<FakeDecode>());
    nodes.back()->delay_ms = 20;
    addresses.push_back(nodes.back()->address());
  }
  TestRouter s(addresses);
  s.WaitReady();
  ASSERT_TRUE(AllAnswered(s, 4));
  const auto loads = [&] {
    std::vector<double> out;
    for (const std::string& address : addresses) {
      out.push_back(
          s.Metric(Cat("baton_router_node_inflight{node=\"", address, "\",role=\"decode\"}")));
    }
    return out;
  };
  std::vector<std::shared_ptr<CountingSink>> sinks;
  for (int i = 0; i < 400; ++i) {
    v1::GenerateRequest request = TestRouter::Request(5);
    request.set_text(std::string(150, '.'));  // one common prefix
    if (i % 4 == 1) {
      auto* message = request.mutable_chat()->add_messages();
      message->set_role("user");
      message->set_content(std::string(100, '.'));
    } else if (i % 4 == 2) {
      for (int k = 0; k < 150; ++k) request.mutable_tokens()->add_ids('.');
    }
    if (i % 10 == 9) request.mutable_sampling()->set_top_p(0);  // refused
    sinks.push_back(std::make_shared<CountingSink>(/*stay=*/i % 10 != 8));
    s.router->Generate({}, request, sinks.back());
    if (i % 20 != 19) continue;
    const std::vector<double> now = loads();
    const auto [least, most] = std::minmax_element(now.begin(), now.end());
    EXPECT_LE(*most - *least, 12) << testing::PrintToString(now);
  }
  ASSERT_TRUE(Eventually([&] {
    return std::all_of(sinks.begin(), sinks.end(),
                       [](const auto& sink) { return sink->done.load(); });
  }));
  int started = 0;
  for (const auto& node : nodes) started += node->started.load();
  EXPECT_EQ(started, 360);
  EXPECT_TRUE(s.Idle());
  EXPECT_TRUE(Eventually([&] { return loads() == std::vector<double>(4, 0.0); }));
  EXPECT_EQ(s.Metric("baton_requests_total{code=\"OK\"}"), 320);
  EXPECT_EQ(s.Metric("baton_requests_total{code=\"INVALID_ARGUMENT\"}"), 40);
}

TEST(RouterLimitsTest, WithApiKeysEveryMethodNeedsOneAndItsTenantIsTheScope) {
  FakeDecode decode;
  TestRouter s({decode.address()});
  s.WaitReady();
  // printf %s abc | sha256sum
  const auto keys = ApiKeys::Create(
      {{"a", "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "team-a"}});
  ASSERT_TRUE(keys.ok()) << keys.status();
  InferenceService service(*s.router, *keys);
  auto server = *RpcServer::Start({}, {&service});
  auto stub = v1::Inference::NewStub(*MakeChannel(server->address()));
  for (const char* key : {"", "Bearer nope", "Bearer abc"}) {
    const bool known = std::string(key) == "Bearer abc";
    const auto expected = known ? grpc::StatusCode::OK : grpc::StatusCode::UNAUTHENTICATED;
    grpc::ClientContext contexts[4];
    for (grpc::ClientContext& context : contexts) {
      if (*key != 0) context.AddMetadata("authorization", key);
    }
    v1::ListModelsResponse models;
    EXPECT_EQ(stub->ListModels(&contexts[0], {}, &models).error_code(), expected);
    EXPECT_EQ(models.models_size(), known ? 1 : 0);
    v1::TokenizeRequest text;
    text.set_text("hi");
    v1::TokenizeResponse ids;
    EXPECT_EQ(stub->Tokenize(&contexts[1], text, &ids).error_code(), expected);
    v1::DetokenizeRequest detokenize;
    v1::DetokenizeResponse back;
    EXPECT_EQ(stub->Detokenize(&contexts[2], detokenize, &back).error_code(), expected);
    auto reader = stub->Generate(&contexts[3], TestRouter::Request(2));
    v1::GenerateEvent event;
    while (reader->Read(&event)) {
    }
    EXPECT_EQ(reader->Finish().error_code(), expected);
  }
  ASSERT_EQ(decode.Requests().size(), 1u);
  EXPECT_EQ(decode.Requests()[0].scope(), "team-a");
}

}  // namespace
}  // namespace baton
