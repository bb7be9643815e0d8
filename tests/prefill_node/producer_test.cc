// What a prefill node refuses, and what the frames it sends look like.
#include "prefill_node/producer.h"

#include <cstring>
#include <filesystem>
#include <functional>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/node/space_proto.h"
#include "common/scd/q4_kv.h"
#include "common/scd/stream_rows.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/kv_write.h"
#include "prefill_node/code_sender.h"
#include "tests/support/tiny_model.h"

namespace baton {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ProducerTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ = std::filesystem::temp_directory_path() / ("baton_producer_" + HexId(RandomId64()));
    WriteTinyLlama(dir_);
    ModelHostOptions options;
    options.models.resize(1);
    options.models[0].name = "base";
    options.models[0].path = dir_.string();
    options.models[0].max_context = 256;
    options.memory.kv_cache = 8 << 20;
    auto files = ModelFiles::Open(options.models);
    ASSERT_TRUE(files.ok()) << files.status();
    auto host = ModelHost::Load(options, *std::move(files), metrics_);
    ASSERT_TRUE(host.ok()) << host.status();
    host_ = *std::move(host);
    producer_ = std::make_unique<Producer>(*host_);
  }
  ~ProducerTest() override { std::filesystem::remove_all(dir_); }

  const HostedModel& model() const { return *host_->Find("base"); }

  v1::StartRequest Good(int tokens = 128) const {
    v1::StartRequest r;
    r.set_base_model("base");
    for (int i = 0; i < tokens; ++i) r.add_token_ids(40 + i % 80);
    r.set_first_token(4);
    r.set_scope("tenant");
    *r.mutable_wants() = ToProto(Producer::SpaceOf(model()));
    r.set_strategy("raw");
    r.set_transfer_id(9);
    r.set_secret("0123456789abcdef");
    return r;
  }

  void ExpectRefused(const v1::StartRequest& r, absl::StatusCode code,
                     testing::Matcher<std::string> message) {
    auto job = producer_->Check(r);
    ASSERT_FALSE(job.ok());
    EXPECT_EQ(job.status().code(), code) << job.status();
    EXPECT_THAT(std::string(job.status().message()), message);
  }

  std::filesystem::path dir_;
  MetricRegistry metrics_;
  std::unique_ptr<ModelHost> host_;
  std::unique_ptr<Producer> producer_;
};

TEST_F(ProducerTest, GoodRequestBecomesAJob) {
  auto job = producer_->Check(Good());
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(job->request.prefill_only);
  EXPECT_EQ(job->request.tokens.size(), 128u);
  EXPECT_EQ(job->request.report_from, 0);  // a page holds the sinks and what follows them
  EXPECT_EQ(job->request.cache.blocks.size(), 2u);
  auto later = Good();
  later.set_first_token(64);
  EXPECT_EQ(producer_->Check(later)->request.report_from, 64);
  later.set_first_token(84);
  EXPECT_EQ(producer_->Check(later)->request.report_from, 80);
  later.set_strategy("q4");
  EXPECT_EQ(producer_->Check(later)->request.report_from, 64);  // codes are of 32 rows
  EXPECT_EQ(producer_->Check(later)->coding, Coding::kQ4);
}

TEST_F(ProducerTest, SelectiveNamesTheLayersThatStayAway) {
  auto r = Good();
  r.set_strategy("selective");
  r.set_run_layers("1-2");
  const auto job = producer_->Check(r);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->coding, Coding::kSelective);
  EXPECT_EQ(job->request.report, ReportedStates::kAroundRun);
  EXPECT_EQ(job->request.run.begin, 1);
  EXPECT_EQ(job->request.run.end, 3);
  for (const char* layers : {"", "1-3", "2-1", "x", "1-99999999999"}) {
    r.set_run_layers(layers);
    ExpectRefused(r, absl::StatusCode::kInvalidArgument, HasSubstr("run_layers"));
  }
}

TEST_F(ProducerTest, BadRequestsAreRefusedByName) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  auto r = Good();
  r.set_base_model("other");
  ExpectRefused(r, absl::StatusCode::kNotFound, AllOf(HasSubstr("other"), HasSubstr("base")));
  ExpectRefused(Good(257), kInvalid, AllOf(HasSubstr("257"), HasSubstr("256")));
  r = Good();
  r.clear_token_ids();
  ExpectRefused(r, kInvalid, HasSubstr("token_ids"));
  r = Good();
  r.set_token_ids(7, 512);
  ExpectRefused(r, kInvalid, AllOf(HasSubstr("token_ids[7]"), HasSubstr("512")));
  r = Good();
  r.set_first_token(128);
  ExpectRefused(r, kInvalid, HasSubstr("first_token"));
  r = Good();
  r.set_secret("short");
  ExpectRefused(r, kInvalid, HasSubstr("secret"));
  r = Good();
  r.set_transfer_id(0);
  ExpectRefused(r, kInvalid, HasSubstr("transfer_id"));
  r = Good();
  r.set_strategy("scd");
  ExpectRefused(r, kInvalid, HasSubstr("scd"));
  r = Good();
  r.add_block_hashes(std::string(32, '0'));
  ExpectRefused(r, kInvalid, HasSubstr("block_hashes[0]"));
}

// Case pd-06: one item at a time, with both values.
TEST_F(ProducerTest, SpacesThatDifferAreNamed) {
  constexpr auto kPrecondition = absl::StatusCode::kFailedPrecondition;
  Space space = Producer::SpaceOf(model());
  const auto with = [&](auto change) {
    Space s = space;
    change(s);
    auto r = Good();
    *r.mutable_wants() = ToProto(s);
    return r;
  };
  const KvLayout& l = space.layout;
  const struct {
    const char* field;
    std::string want, have;
    std::function<void(Space&)> change;
  } cases[] = {
      {"kind", "native_kv", "base_kv", [](Space& s) { s.kind = SpaceKind::kNativeKv; }},
      {"kind", "code", "base_kv", [](Space& s) { s.kind = SpaceKind::kCode; }},
      {"weights_digest", "w", space.weights_digest, [](Space& s) { s.weights_digest = "w"; }},
      {"tokenizer_digest", "t", space.tokenizer_digest, [](Space& s) { s.tokenizer_digest = "t"; }},
      {"layout.dtype", "bf16", "fp32", [](Space& s) { s.layout.dtype = "bf16"; }},
      {"layout.layers", "4", "3", [](Space& s) { s.layout.layers = 4; }},
      {"layout.kv_heads", "1", "2", [](Space& s) { s.layout.kv_heads = 1; }},
      {"layout.head_dim", "32", "16", [](Space& s) { s.layout.head_dim = 32; }},
      {"layout.page_rows", "32", "16", [](Space& s) { s.layout.page_rows = 32; }},
      {"layout.block_tokens", "16", "64", [](Space& s) { s.layout.block_tokens = 16; }},
      {"layout.rope", "theta=5", l.rope, [](Space& s) { s.layout.rope = "theta=5"; }},
      {"encoder_digest", "e", "", [](Space& s) { s.encoder_digest = "e"; }},
  };
  for (const auto& c : cases) {
    ExpectRefused(with(c.change), kPrecondition,
                  HasSubstr(absl::StrCat(c.field, ": want ", c.want, ", have ", c.have)));
  }
  EXPECT_TRUE(producer_->Check(with([](Space& s) { s.weights_digest.clear(); })).ok());
}

TEST_F(ProducerTest, LinkComparesProtocolAndSpace) {
  v1::LinkRequest r;
  *r.mutable_from() = MakeIdentity("d", 1, "decode");
  *r.mutable_wants() = ToProto(Producer::SpaceOf(model()));
  EXPECT_TRUE(producer_->CheckLink(r).ok());  // no name: the only model
  r.mutable_from()->set_protocol(99);
  EXPECT_THAT(std::string(producer_->CheckLink(r).status().message()),
              AllOf(HasSubstr("protocol"), HasSubstr("99")));
}

TEST(PlanFrameTest, GathersKThenVOfEachHead) {
  const KvPageLayout layout{16, DType::kF32};
  auto pool = *PagePool::Create(layout, 6);
  Reservation reservation = *pool->Reserve("test", 6);
  KvReady ready;
  ready.layer = 1;
  ready.begin = 32;
  ready.end = 80;
  for (int head = 0; head < 2; ++head) {
    ready.pages.emplace_back();
    for (int page = 0; page < 3; ++page) {
      ready.pages.back().push_back(reservation.Take());
      std::byte* data = ready.pages.back().back().data();
      std::memset(data + layout.k_offset(), 10 * head + page, layout.k_bytes());
      std::memset(data + layout.v_offset(), 100 + 10 * head + page, layout.v_bytes());
    }
  }
  const FramePlan plan = PlanFrame(ready, layout, 1, 2);
  EXPECT_EQ(plan.header.layer, 1u);
  EXPECT_EQ(plan.header.token_begin, 48u);
  EXPECT_EQ(plan.header.token_end, 80u);
  EXPECT_EQ(plan.header.payload_bytes, 2 * 2 * layout.payload_bytes());
  std::string payload;
  for (const auto& s : plan.payload) {
    payload.append(reinterpret_cast<const char*>(s.data()), s.size());
  }
  EXPECT_TRUE(VerifyPayload(plan.header, payload).ok());
  ASSERT_EQ(plan.chunks.size(), 4u);
  const int expected[4][2] = {{1, 2}, {101, 102}, {11, 12}, {111, 112}};
  for (int c = 0; c < 4; ++c) {
    const FrameChunk& chunk = plan.chunks[c];
    EXPECT_EQ(chunk.kv_head, static_cast<std::uint32_t>(c / 2));
    EXPECT_EQ(chunk.component, c % 2 == 0 ? ChunkComponent::kKey : ChunkComponent::kValue);
    EXPECT_EQ(payload[chunk.offset], expected[c][0]);
    EXPECT_EQ(payload[chunk.offset + chunk.length - 1], expected[c][1]);
  }
}

TEST(PlanFrameTest, RowsOfAStream) {
  StatesReady states{.layer = 2, .begin = 32, .end = 80, .width = 9, .rows = {}};
  for (int row = 32; row < 80; ++row) {
    for (int i = 0; i < 8; ++i) states.rows.push_back(static_cast<float>(i) / 4);
    states.rows.push_back(static_cast<float>(row));
  }
  const FramePlan plan = PlanStreamFrame(states, 16, 32);
  EXPECT_EQ(plan.header.kind, FrameKind::kStream);
  EXPECT_EQ(plan.header.layer, 2u);
  EXPECT_EQ(plan.header.token_begin, 48u);
  EXPECT_EQ(plan.header.token_end, 80u);
  EXPECT_EQ(plan.header.payload_bytes, 32 * StreamRowBytes(8));
  ASSERT_EQ(plan.payload.size(), 1u);
  ASSERT_EQ(plan.payload[0].size(), plan.header.payload_bytes);
  ASSERT_EQ(plan.chunks.size(), 1u);
  EXPECT_EQ(plan.chunks[0].length, plan.header.payload_bytes);
  std::vector<float> stream(32 * 8);
  DecodeStreamRows(reinterpret_cast<const std::byte*>(plan.payload[0].data()), 32, 8,
                   stream.data());
  EXPECT_EQ(stream[0 * 8 + 4], 48);
  EXPECT_EQ(stream[31 * 8 + 6], 79 * 1.5f);
}

TEST(PlanFrameTest, CodesOfEachHead) {
  const KvPageLayout layout{16, DType::kF32};
  auto pool = *PagePool::Create(layout, 8);
  Reservation reservation = *pool->Reserve("test", 8);
  KvReady ready;
  ready.begin = 32;
  ready.end = 96;
  for (int head = 0; head < 2; ++head) {
    ready.pages.emplace_back();
    for (int page = 0; page < 4; ++page) {
      ready.pages.back().push_back(reservation.Take());
      for (int row = 0; row < kPageRows; ++row) {
        const std::vector<float> x(16, static_cast<float>(100 * head + 16 * page + row));
        WriteKvRow(layout, ready.pages.back().back().data(), row, x.data(), x.data(), row);
      }
    }
  }
  const FramePlan plan = PlanQ4Frame(ready, layout, 2, 2, 0);
  EXPECT_EQ(plan.header.kind, FrameKind::kQ4Kv);
  EXPECT_EQ(plan.header.token_begin, 64u);
  EXPECT_EQ(plan.header.token_end, 96u);
  ASSERT_EQ(plan.payload.size(), 1u);
  ASSERT_EQ(plan.payload[0].size(), 2 * (Q4KeyBytes(16) + Q4ValueBytes(16)));
  EXPECT_EQ(plan.header.payload_bytes, plan.payload[0].size());
  ASSERT_EQ(plan.chunks.size(), 4u);
  EXPECT_EQ(plan.chunks[3].component, ChunkComponent::kValue);
  EXPECT_EQ(plan.chunks[3].offset + plan.chunks[3].length, plan.header.payload_bytes);
  const auto* codes = reinterpret_cast<const std::byte*>(plan.payload[0].data());
  std::vector<std::byte> page(layout.page_bytes());
  DecodeQ4(layout, codes + plan.chunks[2].offset, codes + plan.chunks[3].offset, 1,
           page.data() + layout.k_offset());
  float k[16], v[16];
  ReadKvRow(layout, page.data(), 3, k, v);
  EXPECT_EQ(v[7], 100 + 16 * 3 + 3);  // a row of equal values is exact
  EXPECT_NEAR(k[7], 100 + 16 * 3 + 3, 31.0 / 30 + 0.1);
}

}  // namespace
}  // namespace baton
