// Requests that end early or meet a refusal: memory is never given on while somebody may write to
// it, nothing of a request stays behind, and no answer is made of an incomplete prefix.
#include "common/base/fault.h"
#include "decode_node/serve/handoff.h"
#include "tests/decode_node/serve/node_pair.h"

namespace baton {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class AbortTest : public NodePair {
 protected:
  // A request that runs on a thread of its own until it is left.
  class Call {
   public:
    Call(v1::Decode::Stub& stub, v1::DecodeRequest request) : request_(std::move(request)) {
      stream_ = stub.Generate(&context_, request_);
      thread_ = std::thread([this] {
        v1::DecodeEvent event;
        while (stream_->Read(&event)) {
        }
        status_ = FromGrpcStatus(stream_->Finish());
      });
    }
    ~Call() { Leave().IgnoreError(); }
    absl::Status Leave() {
      context_.TryCancel();
      context_.TryCancel();  // twice does no harm
      if (thread_.joinable()) thread_.join();
      return status_;
    }

   private:
    grpc::ClientContext context_;
    const v1::DecodeRequest request_;
    std::unique_ptr<grpc::ClientReader<v1::DecodeEvent>> stream_;
    absl::Status status_;
    std::thread thread_;
  };

  double Metric(MetricRegistry& registry, const std::string& line_start) {
    const std::string text = registry.SerializeText();
    const std::size_t at = text.find("\n" + line_start + " ");
    return at == std::string::npos ? 0 : std::stod(text.substr(at + line_start.size() + 2));
  }
};

// Case pd-03: the writer of A is late, B has A's pages by then.
TEST_F(AbortTest, ALateWriterNeverTouchesPagesOfTheNextRequest) {
  const std::string producer = StartPrefill("prefill", {Entry("m", "a")});
  StartDecode({Entry("m", "a")}, [](DecodeConfig& c) {
    c.memory.kv_cache = 1 << 20;  // one request of 900 tokens, not two
    c.engine.prefix_cache = false;
  });
  const auto second = Prompt(900, 2);
  const Answer want = Ask(Request("m", second, "oracle"));
  ASSERT_TRUE(want.status.ok()) << want.status;
  InProcessFaults late;
  late.delay = absl::Milliseconds(700);
  for (int i = 0; i < 3; ++i) {
    network_->SetFaults(late);
    {
      Call a(*stub_, Request("m", Prompt(900, 1), "raw", {producer}));
      ASSERT_TRUE(Eventually([&] { return decode_->receiver().live_transfers() == 1; }));
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      EXPECT_EQ(a.Leave().code(), absl::StatusCode::kCancelled);
    }
    network_->SetFaults({});
    // B runs while A's frames are still on their way, over the pages A had.
    const Answer b = Ask(Request("m", second, i % 2 == 0 ? "oracle" : "raw", {producer}));
    ASSERT_TRUE(b.status.ok()) << b.status;
    EXPECT_EQ(b.tokens, want.tokens) << i;
  }
  EXPECT_TRUE(Eventually([&] {
    return decode_->receiver().Dropped("unknown_transfer") + decode_->receiver().Dropped("stale") >
           0;
  })) << "nothing was late: the test proves nothing";
  ExpectNothingHeld();
}

// Case pd-03, the other late writer: a worker that has the frame in its hands.
TEST_F(AbortTest, AFrameThatIsBeingImportedWhenItsRequestEndsIsDropped) {
  const std::string producer = StartPrefill("prefill", {Entry("m", "a")});
  StartDecode({Entry("m", "a")}, [](DecodeConfig& c) {
    c.memory.kv_cache = 1 << 20;
    c.engine.prefix_cache = false;
    c.threads.worker = 2;  // one holds the frame, one ends the hand-off
  });
  const auto second = Prompt(900, 2);
  const Answer want = Ask(Request("m", second, "oracle"));
  Fault slow;
  slow.action = Fault::Action::kDelay;
  slow.delay = std::chrono::milliseconds(300);
  slow.max_hits = 1;
  ScopedFault fault("decode.on_frame", slow);
  {
    Call a(*stub_, Request("m", Prompt(900, 1), "raw", {producer}));
    ASSERT_TRUE(Eventually([&] { return FaultHits("decode.on_frame") == 1; }));
    a.Leave().IgnoreError();
  }
  EXPECT_EQ(Ask(Request("m", second, "oracle")).tokens, want.tokens);
  EXPECT_TRUE(Eventually([&] { return decode_->receiver().Dropped("stale") > 0; }));
  ExpectNothingHeld();
}

// Case pd-01: the client leaves before or while the prefix is on its way.
TEST_F(AbortTest, ClientsThatLeaveEarlyAreCountedOnceOnBothNodes) {
  const std::string producer = StartPrefill("prefill", {Entry("m", "a")});
  StartDecode({Entry("m", "a")});
  Fault slow;
  slow.action = Fault::Action::kDelay;
  slow.delay = std::chrono::milliseconds(20);
  ScopedFault fault("producer.after_layer", slow);
  constexpr int kCalls = 20;
  for (int i = 0; i < kCalls; ++i) {
    Call call(*stub_, Request("m", Prompt(900, static_cast<std::uint32_t>(i)), "raw", {producer}));
    ASSERT_TRUE(Eventually([&] { return prefill_[0]->service().live_transfers() > 0; }));
    EXPECT_EQ(call.Leave().code(), absl::StatusCode::kCancelled);
    ASSERT_TRUE(Eventually([&] { return prefill_[0]->service().live_transfers() == 0; },
                           std::chrono::seconds(5)));
  }
  EXPECT_TRUE(Eventually([&] { return decode_->service().live_sessions() == 0; }));
  EXPECT_EQ(Metric(decode_->metrics(), "baton_requests_total{model=\"m\",outcome=\"aborted\"}"),
            kCalls);
  EXPECT_EQ(Metric(prefill_[0]->metrics(), "baton_prefill_transfers_total{outcome=\"aborted\"}"),
            kCalls);
  // Case met-01: who got no token has no time to the first one.
  EXPECT_EQ(Metric(decode_->metrics(), "baton_time_to_first_token_seconds_count{model=\"m\"}"), 0);
  ExpectNothingHeld();
}

// Case pd-05: what the producer refuses is an error or computed here, never half a prefix.
TEST_F(AbortTest, RefusedByTheProducer) {
  ModelEntry narrow = Entry("m", "a");
  narrow.max_context = 256;
  const std::string producer = StartPrefill("prefill", {narrow});
  StartDecode({Entry("m", "a")}, [](DecodeConfig& c) { c.handoff.on_failure = OnFailure::kFail; });
  const Answer got = Ask(Request("m", Prompt(900, 11), "raw", {producer}));
  EXPECT_EQ(got.status.code(), absl::StatusCode::kUnavailable) << got.status;
  EXPECT_THAT(std::string(got.status.message()), AllOf(HasSubstr("832"), HasSubstr("256")));
  EXPECT_TRUE(got.tokens.empty());
  ExpectNothingHeld();
}

// Case pd-05: the producer gives up in the middle of a chunked prefill.
TEST_F(AbortTest, ProducerThatGivesUpBetweenChunks) {
  const std::string producer = StartPrefill("prefill", {Entry("m", "a")});
  for (const OnFailure on_failure : {OnFailure::kRecompute, OnFailure::kFail}) {
    StartDecode({Entry("m", "a")}, [&](DecodeConfig& c) { c.handoff.on_failure = on_failure; });
    const auto prompt = Prompt(1500, 12);
    const Answer want = Oracle("m", prompt);
    Fault slow;
    slow.action = Fault::Action::kDelay;
    slow.delay = std::chrono::milliseconds(30);
    ScopedFault fault("producer.after_layer", slow);
    std::thread killer([&] {
      EXPECT_TRUE(Eventually([&] { return FaultHits("producer.after_layer") >= 5; }));
      prefill_[0]->service().AbortAll(absl::InternalError("the engine gave up"));
    });
    const Answer got = Ask(Request("m", prompt, "raw", {producer}));
    killer.join();
    if (on_failure == OnFailure::kRecompute) {
      ASSERT_TRUE(got.status.ok()) << got.status;
      EXPECT_EQ(got.tokens, want.tokens);
      EXPECT_THAT(got.timing().fallback_reason(), HasSubstr("the engine gave up"));
    } else {
      EXPECT_EQ(got.status.code(), absl::StatusCode::kUnavailable) << got.status;
      EXPECT_TRUE(got.tokens.empty());
    }
    ExpectNothingHeld();
  }
}

// Case met-03: the stages follow each other and add up, whatever happened.
TEST_F(AbortTest, StagesAddUpToTheTimeToFirstToken) {
  const std::string producer = StartPrefill("prefill", {Entry("m", "a")});
  StartDecode({Entry("m", "a")});
  Fault slow;
  slow.action = Fault::Action::kDelay;
  slow.delay = std::chrono::milliseconds(10);
  ScopedFault fault("engine.step", slow);
  const auto check = [&](const Answer& a, const std::string& strategy) {
    ASSERT_TRUE(a.status.ok()) << a.status;
    const v1::Timing& t = a.timing();
    EXPECT_EQ(t.strategy(), strategy) << t.fallback_reason();
    EXPECT_GT(t.ttft_s(), 0.005);
    EXPECT_NEAR(t.queue_s() + t.prefill_s() + t.transfer_s() + t.suffix_s(), t.ttft_s(), 1e-4);
    EXPECT_GE(std::min({t.queue_s(), t.prefill_s(), t.transfer_s(), t.suffix_s()}), 0);
  };
  const Answer raw = Ask(Request("m", Prompt(900, 1), "raw", {producer}));
  check(raw, "raw");
  EXPECT_GT(raw.timing().prefill_s(), 0.05);  // seven chunks
  EXPECT_GT(raw.timing().suffix_s(), 0.01);
  check(Ask(Request("m", Prompt(900, 2), "oracle")), "oracle");
  check(Ask(Request("m", Prompt(900, 1), "raw", {producer})), "oracle");  // from the cache
  {
    ScopedFault broken("producer.before_done", Fault());
    const Answer fallback = Ask(Request("m", Prompt(900, 3), "raw", {producer}));
    check(fallback, "oracle");
    EXPECT_GT(fallback.timing().transfer_s(), 0.05);  // the hand-off that failed
  }
  double sum = 0;
  for (const char* stage : {"queue", "prefill", "transfer", "suffix"}) {
    const double s =
        Metric(decode_->metrics(),
               absl::StrCat("baton_ttft_stage_seconds_sum{model=\"m\",stage=\"", stage, "\"}"));
    EXPECT_GT(s, 0) << stage;
    sum += s;
  }
  const double ttft =
      Metric(decode_->metrics(), "baton_time_to_first_token_seconds_sum{model=\"m\"}");
  EXPECT_NEAR(sum, ttft, 0.05 * ttft);
}

TEST(CheckedLaneTest, OnlyWhatCanBeALane) {
  EXPECT_EQ(CheckedLane("posix"), "posix");
  EXPECT_EQ(CheckedLane("tcp/eth0,rc_mlx5/mlx5_0:1"), "tcp/eth0,rc_mlx5/mlx5_0:1");
  EXPECT_EQ(CheckedLane("in_process"), "in_process");
  EXPECT_EQ(CheckedLane(""), "unknown");
  EXPECT_EQ(CheckedLane("a\nbaton_fake 1"), "unknown");
  EXPECT_EQ(CheckedLane("a\"} 1"), "unknown");
  EXPECT_EQ(CheckedLane(std::string(65, 'a')), "unknown");
}

}  // namespace
}  // namespace baton
