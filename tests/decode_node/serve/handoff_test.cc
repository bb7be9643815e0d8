// The hand-off between nodes, as a client sees it: the answer is always the right one, the timing
// says how it was made, and nothing stays held.
#include <atomic>
#include <random>

#include "common/base/fault.h"
#include "common/node/space_proto.h"
#include "common/scd/q4_kv.h"
#include "decode_node/serve/producer_links.h"
#include "decode_node/serve/request_checks.h"
#include "decode_node/serve/session.h"
#include "tests/decode_node/serve/node_pair.h"

namespace baton {
namespace {

Fault FailOnce() {
  Fault f;
  f.max_hits = 1;
  return f;
}

TEST_F(NodePair, RawIsTokenIdenticalToOracle) {
  const std::string producer = StartPrefill("prefill", {Entry("m", "a")});
  StartDecode({Entry("m", "a")});
  for (const int n : {130, 192, 700, 1900}) {
    const auto prompt = Prompt(n, static_cast<std::uint32_t>(n));
    const Answer want = Oracle("m", prompt);
    ASSERT_TRUE(want.status.ok()) << want.status;
    ASSERT_EQ(want.tokens.size(), 12u);
    const Answer got = Ask(Request("m", prompt, "raw", {producer}));
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.tokens, want.tokens) << n;
    EXPECT_EQ(got.text, want.text);
    EXPECT_EQ(got.timing().strategy(), "raw") << got.timing().fallback_reason();
    EXPECT_EQ(got.timing().producer(), "prefill");
    EXPECT_EQ(got.finished.usage().prompt_tokens(), n);
    // The prefix ends at the last boundary that leaves 64 tokens; four rows are computed here.
    EXPECT_EQ(got.finished.usage().transferred_tokens(), (n - 64) / 64 * 64 - 4);
    EXPECT_GT(got.timing().handoff_bytes(), 0u);
  }
  ExpectNothingHeld();
}

TEST_F(NodePair, Q4CostsAThirdAndIsNeverTakenForMore) {
  const std::string producer = StartPrefill("prefill", {Entry("m", "a")});
  StartDecode({Entry("m", "a")});
  for (const int n : {130, 192, 700, 1900}) {
    const auto prompt = Prompt(n, static_cast<std::uint32_t>(n));
    const Answer want = Oracle("m", prompt);
    auto request = Request("m", prompt, "q4", {producer});
    request.set_scope(absl::StrCat("q4-", n));
    const Answer got = Ask(request);
    ASSERT_TRUE(got.status.ok()) << got.status;
    EXPECT_EQ(got.timing().strategy(), "q4") << got.timing().fallback_reason();
    EXPECT_EQ(got.finished.usage().transferred_tokens(), (n - 64) / 64 * 64 - 4);
    // fp32 pages of head size 16: a coded row costs 5/32 of it plus scales, the last 128 rows all.
    const TinyLlama shape;
    const int prefix = (n - 64) / 64 * 64;
    const int raw = std::min(prefix, 128);
    const int heads = shape.layers * shape.kv_heads;
    const double coded = (Q4KeyBytes(shape.head_dim) + Q4ValueBytes(shape.head_dim)) / 32.0;
    EXPECT_EQ(
        got.timing().handoff_bytes(),
        static_cast<std::uint64_t>(heads * (raw * 8 * shape.head_dim + (prefix - raw) * coded)));
    // Cached as what it is: the same request again takes it, oracle and raw do not.
    const Answer again = Ask(request);
    EXPECT_EQ(again.tokens, got.tokens);
    EXPECT_EQ(again.finished.usage().transferred_tokens(), 0);
    request.set_strategy("oracle");
    const Answer oracle = Ask(request);
    EXPECT_EQ(oracle.tokens, want.tokens);
    EXPECT_EQ(oracle.finished.usage().cached_tokens(), 0);
  }
  ExpectNothingHeld();
}

// Prompts and steps that end in the middle of a group of 32 rows.
TEST_F(NodePair, Q4GroupsSpanSteps) {
  const auto odd = [](auto& config) { config.engine.step_tokens = 48; };
  const std::string producer = StartPrefill("prefill", {Entry("m", "a")}, odd);
  const std::string even = StartPrefill("even", {Entry("m", "a")});
  StartDecode({Entry("m", "a")});
  const auto prompt = Prompt(900, 77);
  auto one = Request("m", prompt, "q4", {producer});
  one.set_scope("one");
  auto other = Request("m", prompt, "q4", {even});
  other.set_scope("other");
  const Answer in_steps = Ask(one);
  const Answer at_once = Ask(other);
  ASSERT_TRUE(in_steps.status.ok()) << in_steps.status;
  EXPECT_EQ(in_steps.timing().strategy(), "q4") << in_steps.timing().fallback_reason();
  EXPECT_EQ(in_steps.tokens, at_once.tokens);
  EXPECT_EQ(in_steps.timing().handoff_bytes(), at_once.timing().handoff_bytes());
  ExpectNothingHeld();
}

TEST_F(NodePair, SecondRequestIsServedFromTheCache) {
  const std::string producer = StartPrefill("prefill", {Entry("m", "a")});
  StartDecode({Entry("m", "a")});
  const auto prompt = Prompt(400, 5);
  const Answer first = Ask(Request("m", prompt, "raw", {producer}));
  const Answer second = Ask(Request("m", prompt, "raw", {producer}));
  ASSERT_TRUE(second.status.ok()) << second.status;
  EXPECT_EQ(first.tokens, second.tokens);
  EXPECT_EQ(first.finished.usage().cached_tokens(), 0);
  EXPECT_EQ(second.finished.usage().transferred_tokens(), 0);
  EXPECT_GE(second.finished.usage().cached_tokens(), 320);
}

TEST_F(NodePair, AutoTakesKvOfItsOwnWeightsOnly) {
  const std::string same = StartPrefill("same", {Entry("m", "a")});
  const std::string other = StartPrefill("other", {Entry("m", "b")});
  StartDecode({Entry("m", "a")});
  const Answer raw = Ask(Request("m", Prompt(300, 1), "auto", {same}));
  EXPECT_EQ(raw.timing().strategy(), "raw") << raw.timing().fallback_reason();
  const Answer local = Ask(Request("m", Prompt(300, 2), "auto", {other}));
  ASSERT_TRUE(local.status.ok()) << local.status;
  EXPECT_EQ(local.timing().strategy(), "oracle");
  EXPECT_THAT(local.timing().fallback_reason(), testing::HasSubstr("weights_digest"));
  EXPECT_EQ(local.tokens, Oracle("m", Prompt(300, 2)).tokens);
  const Answer brief = Ask(Request("m", Prompt(150, 3), "auto", {same}));
  EXPECT_EQ(brief.timing().strategy(), "oracle");
  EXPECT_THAT(brief.timing().fallback_reason(), testing::HasSubstr("min_prefix_tokens"));
}

// Case pd-06: the nodes compare again what the router has compared.
TEST_F(NodePair, SpaceMismatchNamesTheFieldAndIsComputedHere) {
  ModelEntry half = Entry("m", "a");
  half.kv_dtype = DType::kBF16;
  const std::string producer = StartPrefill("prefill", {half});
  StartDecode({Entry("m", "a")});
  const auto prompt = Prompt(300, 4);
  const Answer got = Ask(Request("m", prompt, "raw", {producer}));
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.tokens, Oracle("m", prompt).tokens);
  EXPECT_EQ(got.timing().strategy(), "oracle");
  EXPECT_THAT(got.timing().fallback_reason(),
              testing::AllOf(testing::HasSubstr("layout.dtype"), testing::HasSubstr("fp32"),
                             testing::HasSubstr("bf16")));
}

TEST_F(NodePair, OracleAfterRawFromOtherWeightsEqualsAColdOracle) {
  const std::string producer = StartPrefill("prefill", {Entry("base", "b")});
  ModelEntry consumer = Entry("m", "a");
  consumer.base_model = "base";
  StartDecode({consumer});
  const auto prompt = Prompt(500, 6);
  const Answer cold = Oracle("m", prompt);
  const Answer raw = Ask(Request("m", prompt, "raw", {producer}));
  ASSERT_TRUE(raw.status.ok()) << raw.status;
  EXPECT_EQ(raw.timing().strategy(), "raw") << raw.timing().fallback_reason();
  EXPECT_NE(raw.tokens, cold.tokens);  // two random models: their K/V don't fit
  const Answer after = Ask(Request("m", prompt, "oracle"));
  EXPECT_EQ(after.tokens, cold.tokens);
  EXPECT_EQ(after.finished.usage().cached_tokens(), 0);
}

TEST_F(NodePair, ProducerThatDiesMidTransferCostsOnlyTime) {
  const std::string producer = StartPrefill("prefill", {Entry("m", "a")});
  StartDecode({Entry("m", "a")});
  const auto prompt = Prompt(900, 7);
  const Answer want = Oracle("m", prompt);
  InProcessFaults faults;
  faults.fail_after = 5;
  network_->SetFaults(faults);
  const Answer got = Ask(Request("m", prompt, "raw", {producer}));
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.timing().strategy(), "oracle");
  EXPECT_FALSE(got.timing().fallback_reason().empty());
  EXPECT_THAT(decode_->metrics().SerializeText(),
              testing::HasSubstr("baton_handoff_failures_total{"));
  ExpectNothingHeld();
}

TEST_F(NodePair, FirstProducerDeadSecondServes) {
  const std::string live = StartPrefill("live", {Entry("m", "a")});
  StartDecode({Entry("m", "a")});
  const auto prompt = Prompt(400, 8);
  const Answer got = Ask(Request("m", prompt, "raw", {"127.0.0.1:1", live}));
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.timing().strategy(), "raw") << got.timing().fallback_reason();
  EXPECT_EQ(got.timing().producer(), "live");
  EXPECT_EQ(got.tokens, Oracle("m", prompt).tokens);
}

TEST_F(NodePair, ProducerThatFailsAfterTheLinkGivesWayToTheNext) {
  const std::string one = StartPrefill("one", {Entry("m", "a")});
  const std::string two = StartPrefill("two", {Entry("m", "a")});
  StartDecode({Entry("m", "a")});
  const auto prompt = Prompt(600, 9);
  for (const char* point : {"producer.before_accept", "producer.before_send",
                            "producer.after_layer", "producer.before_done", "decode.before_start",
                            "decode.on_frame", "decode.before_publish"}) {
    decode_->host().ClearPrefixCaches();
    ScopedFault fault(point, FailOnce());
    auto request = Request("m", prompt, "raw", {one, two});
    request.set_scope(point);
    const Answer got = Ask(request);
    ASSERT_TRUE(got.status.ok()) << point << ": " << got.status;
    EXPECT_EQ(FaultHits(point), 1) << point;
    EXPECT_EQ(got.timing().producer(), "two") << point << ": " << got.timing().fallback_reason();
    EXPECT_EQ(got.tokens, Oracle("m", prompt).tokens) << point;
  }
  ExpectNothingHeld();
}

TEST_F(NodePair, BadFramesAreDroppedAndTheAnswerIsRight) {
  const std::string producer = StartPrefill("prefill", {Entry("m", "a")});
  StartDecode({Entry("m", "a")});
  struct Case {
    const char* name;
    InProcessFaults faults;
    const char* reason;
  };
  InProcessFaults drop, duplicate, reorder, corrupt;
  drop.drop = 0.3;
  duplicate.duplicate = 1;
  reorder.reorder = 0.5;
  corrupt.corrupt = 0.5;
  std::uint32_t seed = 20;
  for (const Case& c : {Case{"drop", drop, ""}, Case{"duplicate", duplicate, "duplicate"},
                        Case{"reorder", reorder, ""}, Case{"corrupt", corrupt, "corrupt"}}) {
    const auto prompt = Prompt(800, ++seed);
    network_->SetFaults({});
    const Answer want = Oracle("m", prompt);
    network_->SetFaults(c.faults);
    const Answer got = Ask(Request("m", prompt, "raw", {producer}));
    ASSERT_TRUE(got.status.ok()) << c.name << ": " << got.status;
    EXPECT_EQ(got.tokens, want.tokens) << c.name;
    if (*c.reason != '\0') {
      EXPECT_GT(decode_->receiver().Dropped(c.reason), 0) << c.name;
    }
    const bool harmless = c.faults.drop == 0 && c.faults.corrupt == 0;
    EXPECT_EQ(got.timing().strategy(), harmless ? "raw" : "oracle") << c.name;
  }
  ExpectNothingHeld();
}

TEST_F(NodePair, HungProducerIsGivenUp) {
  const std::string producer = StartPrefill("prefill", {Entry("m", "a")});
  StartDecode({Entry("m", "a")},
              [](DecodeConfig& c) { c.handoff.progress_timeout = std::chrono::milliseconds(300); });
  // Heartbeats come at 200 ms, so only a producer that is silent altogether is given up.
  ASSERT_TRUE(Ask(Request("m", Prompt(300, 30), "raw", {producer})).status.ok());
  network_->Pause("decode");  // frames stay away, the stream lives until the transport gives up
  const auto prompt = Prompt(300, 31);
  const Answer got = Ask(Request("m", prompt, "raw", {producer}));
  network_->Resume("decode");
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.timing().strategy(), "oracle");
  EXPECT_EQ(got.tokens, Oracle("m", prompt).tokens);
  ExpectNothingHeld();
}

TEST_F(NodePair, OnFailureFailSaysWhy) {
  StartDecode({Entry("m", "a")}, [](DecodeConfig& c) { c.handoff.on_failure = OnFailure::kFail; });
  const Answer got = Ask(Request("m", Prompt(300, 10), "raw", {"127.0.0.1:1"}));
  EXPECT_EQ(got.status.code(), absl::StatusCode::kUnavailable) << got.status;
  EXPECT_THAT(std::string(got.status.message()), testing::HasSubstr("127.0.0.1:1"));
  EXPECT_TRUE(got.tokens.empty());
  ExpectNothingHeld();
}

// Case pd-05.
TEST_F(NodePair, PrefixOverTheProducersLimitIsComputedHere) {
  ModelEntry narrow = Entry("m", "a");
  narrow.max_context = 256;
  const std::string producer = StartPrefill("prefill", {narrow});
  StartDecode({Entry("m", "a")});
  const auto prompt = Prompt(900, 11);
  const Answer got = Ask(Request("m", prompt, "raw", {producer}));
  ASSERT_TRUE(got.status.ok()) << got.status;
  EXPECT_EQ(got.tokens, Oracle("m", prompt).tokens);
  EXPECT_THAT(got.timing().fallback_reason(), testing::HasSubstr("256"));
  ExpectNothingHeld();
}

// Case pd-07.
TEST_F(NodePair, RestartedProducerServesAgain) {
  std::string producer = StartPrefill("prefill", {Entry("m", "a")});
  const int port = prefill_[0]->grpc_port();
  StartDecode({Entry("m", "a")});
  ASSERT_EQ(Ask(Request("m", Prompt(300, 40), "raw", {producer})).timing().strategy(), "raw");
  prefill_.clear();
  const Answer without = Ask(Request("m", Prompt(300, 41), "raw", {producer}));
  ASSERT_TRUE(without.status.ok()) << without.status;
  EXPECT_EQ(without.timing().strategy(), "oracle");
  StartPrefill("prefill", {Entry("m", "a")}, [&](PrefillConfig& c) { c.rpc.port = port; });
  std::uint32_t seed = 42;
  EXPECT_TRUE(Eventually([&] {
    return Ask(Request("m", Prompt(300, ++seed), "raw", {producer})).timing().strategy() == "raw";
  }));
}

TEST_F(NodePair, CancelAtRandomMomentsHoldsNothing) {
  const std::string producer = StartPrefill("prefill", {Entry("m", "a")});
  StartDecode({Entry("m", "a")});
  std::mt19937 random(3);
  for (int i = 0; i < 60; ++i) {
    auto request = Request("m", Prompt(200 + static_cast<int>(random() % 1200), 100 + i % 7), "raw",
                           {producer});
    request.mutable_stop()->set_max_tokens(64);
    grpc::ClientContext context;
    auto stream = stub_->Generate(&context, request);
    std::thread killer([&, us = random() % 60000] {
      std::this_thread::sleep_for(std::chrono::microseconds(us));
      context.TryCancel();
    });
    v1::DecodeEvent event;
    while (stream->Read(&event)) {
    }
    const grpc::Status status = stream->Finish();
    killer.join();
    EXPECT_TRUE(status.ok() || status.error_code() == grpc::StatusCode::CANCELLED)
        << status.error_message();
  }
  ExpectNothingHeld();
  EXPECT_TRUE(Ask(Request("m", Prompt(300, 1), "raw", {producer})).status.ok());
}

// The client may leave while the request is still being set up. Session and hand-off hold each
// other until one of them ends.
TEST_F(NodePair, CancelBeforeTheHandoffBeginsHoldsNothing) {
  const std::string producer = StartPrefill("prefill", {Entry("m", "a")});
  StartDecode({Entry("m", "a")});
  MetricRegistry metrics;
  auto workers = std::make_shared<WorkerPool>(1);
  CodeReceiver receiver(workers, metrics, 1 << 20);
  ProducerLinksOptions options;
  options.self = MakeIdentity("test", 1, "decode");
  options.timeout = std::chrono::seconds(20);
  ProducerLinks links(options);
  const auto counter = [&](const char* name, std::vector<std::string> labels) {
    return metrics.AddCounterFamily(name, "Of the test.", std::move(labels));
  };
  const auto histogram = [&](const char* name, std::vector<std::string> labels) {
    return metrics.AddHistogramFamily(name, "Of the test.", std::move(labels));
  };
  auto env = std::make_shared<const HandoffEnv>(
      HandoffEnv{receiver,
                 links,
                 {},
                 1,
                 [] { return std::string("inproc:test"); },
                 histogram("baton_handoff_seconds", {"strategy", "lane"}),
                 counter("baton_handoff_bytes_total", {"strategy", "lane"}),
                 counter("baton_handoff_failures_total", {"strategy", "reason"})});
  auto session_env = std::make_shared<const SessionEnv>(
      SessionEnv{decode_->host(),
                 workers,
                 env,
                 {},
                 counter("baton_requests_total", {"model", "outcome"}),
                 counter("baton_prefixes_total", {"where"}),
                 counter("baton_handoff_fallbacks_total", {"model", "strategy"}),
                 histogram("baton_time_to_first_token_seconds", {"model"}),
                 histogram("baton_ttft_stage_seconds", {"model", "stage"}),
                 histogram("baton_inter_token_latency_seconds", {"model"}),
                 histogram("baton_e2e_request_latency_seconds", {"model"}),
                 std::make_shared<DriftMonitor>(0, metrics, 1)});
  auto checked = CheckRequest(Request("m", Prompt(400, 9), "raw", {producer}), decode_->host(),
                              DecodeHandoffConfig());
  ASSERT_TRUE(checked.ok()) << checked.status();
  // gRPC has a share of a writer until the call is over; there is no call here.
  static auto* const writers = new std::vector<std::shared_ptr<Session::Writer>>();
  writers->push_back(Session::Writer::Create());
  auto session = std::make_shared<Session>(session_env, *std::move(checked), writers->back(), false,
                                           absl::InfiniteFuture(), [] {});
  session->Cancel(absl::CancelledError("the client went away"));
  session->Start();
  std::weak_ptr<Session> gone = session;
  session.reset();
  EXPECT_TRUE(Eventually([&] { return gone.expired(); }));
  workers->Stop();
}

TEST_F(NodePair, ManyAtOnceEqualTheirSerialAnswers) {
  const std::string producer = StartPrefill("prefill", {Entry("m", "a")});
  StartDecode({Entry("m", "a")});
  constexpr int kRequests = 12;
  std::vector<std::vector<std::int64_t>> prompts;
  std::vector<Answer> want;
  for (int i = 0; i < kRequests; ++i) {
    auto prompt = Prompt(256, 77);  // one prefix, different tails
    const auto tail = Prompt(70 + i, static_cast<std::uint32_t>(i));
    prompt.insert(prompt.end(), tail.begin(), tail.end());
    prompts.push_back(prompt);
    want.push_back(Oracle("m", prompt));
  }
  std::vector<Answer> got(kRequests);
  std::vector<std::thread> threads;
  for (int i = 0; i < kRequests; ++i) {
    threads.emplace_back([&, i] { got[i] = Ask(Request("m", prompts[i], "raw", {producer})); });
  }
  for (auto& t : threads) t.join();
  for (int i = 0; i < kRequests; ++i) {
    EXPECT_TRUE(got[i].status.ok()) << got[i].status;
    EXPECT_EQ(got[i].tokens, want[i].tokens) << i;
  }
  ExpectNothingHeld();
}

TEST_F(NodePair, ProducerIsDestroyedUnderLoad) {
  const std::string producer = StartPrefill("prefill", {Entry("m", "a")});
  StartDecode({Entry("m", "a")});
  std::vector<std::thread> threads;
  std::atomic<int> ok{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] {
      ok += Ask(Request("m", Prompt(900 + i, 200 + i), "raw", {producer})).status.ok() ? 1 : 0;
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(60));
  prefill_.clear();
  for (auto& t : threads) t.join();
  EXPECT_EQ(ok, 8);
  ExpectNothingHeld();
}

}  // namespace
}  // namespace baton
