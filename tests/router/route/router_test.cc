// The router in front of fake nodes over real gRPC.
#include "router/route/router.h"

#include <gmock/gmock.h>
#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <gtest/gtest.h>

#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/strings.h"
#include "common/prefix_hash/block_hash.h"
#include "common/rpc/channel.h"
#include "common/rpc/rpc_server.h"
#include "router/discovery/static_directory.h"
#include "router/route/router_service.h"
#include "tests/router/route/test_router.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using testing::HasSubstr;

TEST(RouterTest, StreamsAndNamesEverythingToTheDecodeNode) {
  FakeDecode decode;
  FakePrefill same("base", "accepts-1");
  FakePrefill differs("base", "other");
  FakePrefill unrelated("another-base", "accepts-1");
  TestRouter s({decode.address()}, {differs.address(), unrelated.address(), same.address()});
  s.WaitReady();
  v1::GenerateRequest request = TestRouter::Request(12);
  request.set_text(std::string(200, '.'));
  request.set_want_timing(true);
  ASSERT_TRUE(Eventually([&] {  // the prefill nodes may answer a little later
    EXPECT_TRUE(s.Generate(request).status.ok());
    const std::vector<v1::DecodeRequest> sent = decode.Requests();
    return !sent.empty() && sent.back().prefill_nodes_size() == 2;
  }));
  const Outcome out = s.Generate(request);
  ASSERT_TRUE(out.status.ok()) << out.status.error_message();
  EXPECT_EQ(out.text, LettersFrom(0, 12));
  EXPECT_EQ(out.ids.size(), 12u);
  EXPECT_EQ(out.finishes, 1);
  EXPECT_EQ(out.finished.reason(), v1::LENGTH);
  EXPECT_GT(out.finished.timing().router_s(), 0);
  const v1::DecodeRequest sent = decode.Requests().back();
  EXPECT_EQ(sent.token_ids_size(), 200);
  EXPECT_EQ(sent.scope(), "default");
  EXPECT_TRUE(sent.sampling().has_seed());
  EXPECT_EQ(sent.request_id().size(), 32u);
  EXPECT_EQ(sent.block_hashes_size(), 2);  // 128 of 200 tokens are shareable
  // Own recomputation of the chain.
  auto tokenizer = *Tokenizer::FromJson(tiny_model_internal::TokenizerJson(512));
  const std::vector<int32_t> ids(200, '.');
  EXPECT_EQ(sent.block_hashes(1),
            ChainHashes(ids, ChainSeed(tokenizer->digest(), "default"))[1].Hex());
  EXPECT_THAT(sent.prefill_nodes(), testing::ElementsAre(same.address(), differs.address()));
  request.set_strategy("oracle");
  s.Generate(request);
  EXPECT_EQ(decode.Requests().back().prefill_nodes_size(), 0);
  EXPECT_TRUE(s.Idle());
}

TEST(RouterTest, SaysWhyNoPrefillNodeIsNamed) {
  FakeDecode decode;
  TestRouter alone({decode.address()}, {});
  alone.WaitReady();
  alone.Generate(TestRouter::Request());
  EXPECT_EQ(decode.Requests().back().no_prefill_reason(), "the router has no prefill nodes");
  TestRouter s({decode.address()}, {"127.0.0.1:1"});
  s.WaitReady();
  s.Generate(TestRouter::Request());
  EXPECT_EQ(decode.Requests().back().no_prefill_reason(),
            "prefill node 127.0.0.1:1: it does not answer now");
}

// Cases pd-06 and yml-04: a pair that does not fit gets no requests and says what differs; where
// the file demands a prefill node, readiness waits for one.
TEST(RouterTest, PairsThatDoNotFitAreNamedAndNotUsed) {
  v1::Space have = SpaceOfDigest("other");
  have.mutable_layout()->set_layers(4);
  FakePrefill prefill("base", have);
  FakeDecode decode;
  decode.accepts.mutable_layout()->set_layers(3);
  TestRouter s({decode.address()}, {prefill.address()});
  TestRouter demanding({decode.address()}, {prefill.address()},
                       [](RouterConfig& c) { c.nodes.require_prefill = true; });
  s.WaitReady();
  const v1::GenerateRequest request = TestRouter::Request();
  std::string reason;
  EXPECT_TRUE(Eventually([&] {
    s.Generate(request);
    reason = decode.Requests().back().no_prefill_reason();
    return reason.find("layers") != std::string::npos;
  })) << reason;
  EXPECT_THAT(reason, testing::AllOf(HasSubstr(prefill.address()),
                                     HasSubstr("layout.layers: want 3, have 4")));
  EXPECT_EQ(decode.Requests().back().prefill_nodes_size(), 0);
  // The other router has looked at the pair, too.
  std::this_thread::sleep_for(milliseconds(300));
  EXPECT_FALSE(demanding.router->Ready());

  have.mutable_layout()->set_layers(3);
  prefill.SetSpace(have);
  EXPECT_TRUE(Eventually([&] { return demanding.router->Ready(); }));
  EXPECT_TRUE(Eventually([&] {
    s.Generate(request);
    return decode.Requests().back().prefill_nodes_size() == 1;
  }));
}

// Case yml-04: prefill nodes that no decode node may use are told of at start, not for ever.
TEST(RouterTest, PrefillNodesThatNobodyMayUseAreToldOf) {
  FakePrefill prefill("base", "accepts-1");
  FakeDecode decode;
  decode.default_strategy = "oracle";
  testing::internal::CaptureStderr();
  {
    TestRouter s({decode.address()}, {prefill.address()},
                 [](RouterConfig& c) { c.nodes.require_prefill = true; });
    std::this_thread::sleep_for(milliseconds(500));  // several looks at the nodes
    EXPECT_FALSE(s.router->Ready());
  }
  const std::string log = testing::internal::GetCapturedStderr();
  const size_t at = log.find("prefill nodes are configured, but none may be used");
  ASSERT_NE(at, std::string::npos) << log;
  EXPECT_THAT(log.substr(at), HasSubstr("handoff.strategy"));
  EXPECT_EQ(log.find("prefill nodes are configured", at + 1), std::string::npos) << log;
}

TEST(RouterTest, ChatUsesTheModelsTemplate) {
  FakeDecode decode;
  TestRouter s({decode.address()});
  s.WaitReady();
  v1::GenerateRequest request = TestRouter::Request(2);
  auto* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("a <|im_end|>");
  const Outcome out = s.Generate(request);
  ASSERT_TRUE(out.status.ok()) << out.status.error_message();
  const v1::DecodeRequest sent = decode.Requests().back();
  int starts = 0;
  int ends = 0;
  for (int64_t id : sent.token_ids()) {
    starts += id == kTinyImStart;
    ends += id == kTinyImEnd;
  }
  EXPECT_EQ(starts, 2);
  EXPECT_EQ(ends, 1) << "text of a message became a special token";
}

TEST(RouterTest, ChatWithoutTemplateAndForgedTemplateAreRefused) {
  FakeDecode none;
  none.template_text = "";
  TestRouter s({none.address()});
  s.WaitReady();
  v1::GenerateRequest request = TestRouter::Request(2);
  auto* message = request.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("hi");
  EXPECT_THAT(s.Generate(request).status.error_message(), HasSubstr("chat template"));
  FakeDecode forged;
  forged.served_template = "something else";
  TestRouter t({forged.address()});
  t.WaitReady();
  const Outcome out = t.Generate(request);
  EXPECT_EQ(out.status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(out.status.error_message(), HasSubstr("digest"));
}

TEST(RouterTest, BadRequestsNameFieldValueAndLimit) {
  FakeDecode decode;
  TestRouter s({decode.address()});
  s.WaitReady();
  using Change = std::function<void(v1::GenerateRequest&)>;
  const struct {
    const char* says;
    Change change;
  } cases[] = {
      {"temperature", [](auto& r) { r.mutable_sampling()->set_temperature(-1); }},
      {"temperature", [](auto& r) { r.mutable_sampling()->set_temperature(NAN); }},
      {"top_p", [](auto& r) { r.mutable_sampling()->set_top_p(0); }},
      {"min_p", [](auto& r) { r.mutable_sampling()->set_min_p(2); }},
      {"top_logprobs", [](auto& r) { r.mutable_sampling()->set_top_logprobs(3); }},
      {"logit_bias", [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[512] = 1; }},
      {"logit_bias", [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[-1] = 1; }},
      {"logit_bias", [](auto& r) { (*r.mutable_sampling()->mutable_logit_bias())[5] = 1e9; }},
      {"max_tokens", [](auto& r) { r.mutable_stop()->set_max_tokens(0); }},
      {"max_tokens", [](auto& r) { r.mutable_stop()->set_max_tokens(INT64_MIN); }},
      {"min_tokens", [](auto& r) { r.mutable_stop()->set_min_tokens(11); }},
      {"stop[1]",
       [](auto& r) {
         r.mutable_stop()->add_stop("x");
         r.mutable_stop()->add_stop("");
       }},
      {"stop_token_ids", [](auto& r) { r.mutable_stop()->add_stop_token_ids(512); }},
      {"prompt", [](auto& r) { r.clear_prompt(); }},
      {"prompt", [](auto& r) { r.set_text(""); }},
      {"prompt", [](auto& r) { r.mutable_tokens(); }},
      {"messages", [](auto& r) { r.mutable_chat(); }},
      {"prompt[0]: token id 512", [](auto& r) { r.mutable_tokens()->add_ids(512); }},
      {"token", [](auto& r) { r.mutable_tokens()->add_ids(int64_t{1} << 40); }},
      {"strategy", [](auto& r) { r.set_strategy("magic"); }},
      {"shared_prefix_tokens", [](auto& r) { r.set_shared_prefix_tokens(1000); }},
  };
  for (const auto& c : cases) {
    v1::GenerateRequest request = TestRouter::Request();
    c.change(request);
    const Outcome out = s.Generate(request);
    EXPECT_EQ(out.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << c.says;
    EXPECT_THAT(out.status.error_message(), HasSubstr(c.says));
    EXPECT_TRUE(out.text.empty());
  }
  v1::GenerateRequest long_one = TestRouter::Request(100);
  long_one.set_text(std::string(200, '.'));
  const std::string message = s.Generate(long_one).status.error_message();
  for (const char* number : {"200", "100", "256"}) EXPECT_THAT(message, HasSubstr(number));
  v1::GenerateRequest full = TestRouter::Request();
  full.mutable_stop()->clear_max_tokens();
  full.set_text(std::string(256, '.'));
  EXPECT_THAT(s.Generate(full).status.error_message(), HasSubstr("256"));
  EXPECT_EQ(decode.started.load(), 0) << "a bad request reached a node";
  v1::GenerateRequest open = TestRouter::Request();
  open.mutable_stop()->clear_max_tokens();
  open.set_text(std::string(250, '.'));
  EXPECT_EQ(s.Generate(open).text.size(), 6u);  // up to the context
  v1::GenerateRequest unknown = TestRouter::Request();
  unknown.set_model("nope");
  const Outcome out = s.Generate(unknown);
  EXPECT_EQ(out.status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_THAT(out.status.error_message(), HasSubstr("'tiny'"));
  EXPECT_TRUE(s.Idle());
}

TEST(RouterTest, RetriesBeforeTheFirstTokenOnAnotherNode) {
  FakeDecode bad;
  FakeDecode good;
  bad.fail_after = 0;
  TestRouter s({bad.address(), good.address()}, {},
               [](RouterConfig& c) { c.policy.decode = PolicyKind::kRoundRobin; });
  s.WaitReady();
  ASSERT_TRUE(Eventually([&] {
    const Outcome out = s.Generate(TestRouter::Request());
    EXPECT_TRUE(out.status.ok()) << out.status.error_message();
    EXPECT_EQ(out.text, LettersFrom(0, 10));
    return bad.started.load() > 0;
  }));
  EXPECT_GE(s.Metric("baton_router_retries_total"), 1);
  EXPECT_EQ(s.Metric("baton_migrations_total"), 0);
  EXPECT_TRUE(s.Idle());
}

TEST(RouterTest, BadRequestsAreNotRetried) {
  FakeDecode a;
  FakeDecode b;
  a.fail_after = b.fail_after = 0;
  a.failure = b.failure = absl::InvalidArgumentError("no");
  TestRouter s({a.address(), b.address()});
  s.WaitReady();
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(s.Generate(TestRouter::Request()).status.error_code(),
              grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_EQ(a.started + b.started, 10);
  EXPECT_TRUE(s.router->Ready()) << "a refusal opened the breaker";
  EXPECT_TRUE(s.Idle());
}

TEST(RouterTest, ReplaysAfterTheFirstTokenWithNothingDoubledOrMissing) {
  FakeDecode a;
  FakeDecode b;
  a.fail_after = 7;
  b.fail_after = 5;
  TestRouter s({a.address(), b.address()}, {}, [](RouterConfig& c) { c.retry.max_attempts = 16; });
  s.WaitReady();
  v1::GenerateRequest request = TestRouter::Request(50);
  const Outcome out = s.Generate(request);
  ASSERT_TRUE(out.status.ok()) << out.status.error_message();
  EXPECT_EQ(out.text, LettersFrom(0, 50));
  EXPECT_EQ(out.ids.size(), 50u);
  EXPECT_EQ(out.finishes, 1);
  EXPECT_EQ(out.finished.usage().completion_tokens(), 50);
  EXPECT_GE(s.Metric("baton_migrations_total"), 7);
  uint64_t seed = 0;
  for (FakeDecode* node : {&a, &b}) {
    for (const v1::DecodeRequest& r : node->Requests()) {
      if (seed == 0) seed = r.sampling().seed();
      EXPECT_EQ(r.sampling().seed(), seed) << "a replay must continue the same random numbers";
    }
  }
  EXPECT_TRUE(s.Idle());
}

TEST(RouterTest, ANodeThatDiesBetweenLastTokenAndEndCostsNothing) {
  FakeDecode decode;
  decode.fail_after = 10;
  TestRouter s({decode.address()});
  s.WaitReady();
  const Outcome out = s.Generate(TestRouter::Request(10));
  EXPECT_TRUE(out.status.ok()) << out.status.error_message();
  EXPECT_EQ(out.text, LettersFrom(0, 10));
  EXPECT_EQ(out.finished.reason(), v1::LENGTH);
  EXPECT_EQ(decode.started.load(), 1);
}

TEST(RouterTest, AStreamNeverContinuesOnOtherWeights) {
  FakeDecode a;
  FakeDecode b;
  b.native_space = "space-2";
  a.fail_after = b.fail_after = 3;
  TestRouter s({a.address(), b.address()});
  s.WaitReady();
  const Outcome out = s.Generate(TestRouter::Request(30));
  FakeDecode& other = a.started.load() > 0 ? b : a;
  EXPECT_EQ(other.started.load(), 0);
  EXPECT_EQ(out.text, LettersFrom(0, static_cast<int64_t>(out.text.size())));
}

// Case str-10, the gRPC half: never OK, and what was sent stays valid.
TEST(RouterTest, ErrorOfTheEngineMidStreamEndsTheStreamWithIt) {
  FakeDecode decode;
  decode.fail_after = 5;
  decode.failure = absl::InternalError("the engine broke");
  TestRouter s({decode.address()});
  s.WaitReady();
  const Outcome out = s.Generate(TestRouter::Request(30));
  EXPECT_EQ(out.status.error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(out.status.error_message(), "the engine broke");
  EXPECT_EQ(out.text, LettersFrom(0, 5));
  EXPECT_EQ(out.finishes, 0);
}

TEST(RouterTest, KilledNodesStreamsGoOnElsewhere) {
  auto victim = std::make_unique<FakeDecode>();
  FakeDecode other;
  victim->delay_ms = other.delay_ms = 5;
  TestRouter s({victim->address(), other.address()}, {},
               [](RouterConfig& c) { c.policy.decode = PolicyKind::kRoundRobin; });
  s.WaitReady();
  ASSERT_TRUE(Eventually([&] {
    return s.registry.SerializeText().find("role=\"decode\",state=\"gone\"} 1") ==
           std::string::npos;
  }));
  std::vector<std::thread> clients;
  std::vector<Outcome> outcomes(12);
  for (auto& out : outcomes) {
    clients.emplace_back([&] { out = s.Generate(TestRouter::Request(60)); });
  }
  ASSERT_TRUE(Eventually([&] { return victim->started.load() >= 6; }));
  victim.reset();
  for (auto& client : clients) client.join();
  for (const Outcome& out : outcomes) {
    EXPECT_TRUE(out.status.ok()) << out.status.error_message();
    EXPECT_EQ(out.text, LettersFrom(0, 60));
    EXPECT_EQ(out.finishes, 1);
  }
  EXPECT_TRUE(s.Idle());
}

TEST(RouterTest, AClientThatCancelsFreesTheNodeAtOnce) {
  FakeDecode decode;
  decode.delay_ms = 20;
  TestRouter s({decode.address()});
  s.WaitReady();
  grpc::ClientContext context;
  auto reader = s.stub->Generate(&context, TestRouter::Request(200));
  v1::GenerateEvent event;
  ASSERT_TRUE(reader->Read(&event));
  const absl::Time start = absl::Now();
  context.TryCancel();
  EXPECT_TRUE(Eventually([&] { return decode.ended.load() == 1; }));
  EXPECT_LT(absl::Now() - start, absl::Seconds(2));
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(Eventually([&] { return s.Idle(); }));
  EXPECT_EQ(s.Metric("baton_requests_total{code=\"CANCELLED\"}"), 1);
}

TEST(RouterTest, DeadlinesPassThrough) {
  FakeDecode decode;
  decode.delay_ms = 50;
  TestRouter s({decode.address()});
  s.WaitReady();
  const Outcome out = s.Generate(TestRouter::Request(200), absl::Milliseconds(300));
  EXPECT_EQ(out.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(Eventually([&] { return decode.ended.load() == 1 && s.Idle(); }));
}

TEST(RouterTest, InflightIsBoundedWithAHint) {
  FakeDecode decode;
  decode.delay_ms = 20;
  TestRouter s({decode.address()}, {}, [](RouterConfig& c) { c.limits.max_inflight = 1; });
  s.WaitReady();
  grpc::ClientContext context;
  auto reader = s.stub->Generate(&context, TestRouter::Request(200));
  v1::GenerateEvent event;
  ASSERT_TRUE(reader->Read(&event));
  const Outcome out = s.Generate(TestRouter::Request());
  EXPECT_EQ(out.status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_THAT(out.status.error_message(), HasSubstr("limits.max_inflight"));
  EXPECT_EQ(out.retry_after, "1000");
  context.TryCancel();
  reader->Finish();
  EXPECT_TRUE(Eventually([&] { return s.Idle(); }));
  decode.delay_ms = 0;
  EXPECT_TRUE(s.Generate(TestRouter::Request()).status.ok());
}

TEST(RouterTest, LoadIsSpreadAndDrainingNodesAreLeftAlone) {
  FakeDecode a;
  FakeDecode b;
  a.delay_ms = b.delay_ms = 10;
  TestRouter s({a.address(), b.address()});
  s.WaitReady();
  ASSERT_TRUE(Eventually([&] {
    return s.registry.SerializeText().find("role=\"decode\",state=\"gone\"} 1") ==
           std::string::npos;
  }));
  std::vector<std::thread> clients;
  for (int i = 0; i < 20; ++i) {
    clients.emplace_back([&] { EXPECT_TRUE(s.Generate(TestRouter::Request(30)).status.ok()); });
  }
  for (auto& client : clients) client.join();
  EXPECT_LE(std::abs(a.started - b.started), 4);
  a.draining = true;
  std::this_thread::sleep_for(milliseconds(300));
  const int before = a.started;
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(s.Generate(TestRouter::Request()).status.ok());
  EXPECT_EQ(a.started, before);
}

TEST(RouterTest, ARestartedNodeIsUsedAgainAndNoneIsAClearError) {
  auto decode = std::make_unique<FakeDecode>();
  const int port = decode->port();
  TestRouter s({decode->address()});
  s.WaitReady();
  decode.reset();
  const Outcome out = s.Generate(TestRouter::Request());
  EXPECT_EQ(out.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_FALSE(out.status.error_message().empty());
  EXPECT_TRUE(Eventually([&] { return !s.router->Ready(); }));
  FakeDecode again(port);
  s.WaitReady();
  EXPECT_EQ(s.Generate(TestRouter::Request()).text, LettersFrom(0, 10));
}

TEST(RouterTest, ListsModelsAndTokenizes) {
  FakeDecode decode;
  TestRouter s({decode.address()});
  s.WaitReady();
  v1::ListModelsResponse models;
  grpc::ClientContext c1;
  ASSERT_TRUE(s.stub->ListModels(&c1, {}, &models).ok());
  ASSERT_EQ(models.models_size(), 1);
  EXPECT_EQ(models.models(0).name(), "tiny");
  EXPECT_EQ(models.models(0).max_context_tokens(), 256u);
  EXPECT_TRUE(models.models(0).ready());
  v1::TokenizeRequest tokenize;
  tokenize.set_text(".<|im_end|>");
  v1::TokenizeResponse ids;
  grpc::ClientContext c2;
  ASSERT_TRUE(s.stub->Tokenize(&c2, tokenize, &ids).ok());
  EXPECT_GT(ids.ids_size(), 2);
  v1::DetokenizeRequest detokenize;
  *detokenize.mutable_ids() = ids.ids();
  v1::DetokenizeResponse text;
  grpc::ClientContext c3;
  ASSERT_TRUE(s.stub->Detokenize(&c3, detokenize, &text).ok());
  EXPECT_EQ(text.text(), ".<|im_end|>");
  tokenize.set_parse_special(true);
  grpc::ClientContext c4;
  ASSERT_TRUE(s.stub->Tokenize(&c4, tokenize, &ids).ok());
  EXPECT_THAT(ids.ids(), testing::ElementsAre('.', kTinyImEnd));
  detokenize.add_ids(512);
  grpc::ClientContext c5;
  EXPECT_EQ(s.stub->Detokenize(&c5, detokenize, &text).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

}  // namespace
}  // namespace baton
