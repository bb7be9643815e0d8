// Requests, answers and what a node tells of itself.
#include <limits>

#include "common/base/logging.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/decode_node/serve/node_pair.h"

namespace baton {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class DecodeServiceTest : public NodePair {
 protected:
  void SetUp() override { StartDecode({Entry("m", "a")}); }

  void ExpectRefused(const v1::DecodeRequest& request, absl::StatusCode code,
                     testing::Matcher<std::string> message) {
    const Answer answer = Ask(request);
    EXPECT_EQ(answer.status.code(), code) << answer.status;
    EXPECT_THAT(std::string(answer.status.message()), message);
    EXPECT_TRUE(answer.tokens.empty());
  }
  v1::DecodeRequest Good() const { return Request("m", Prompt(20, 1), "oracle"); }
};

TEST_F(DecodeServiceTest, BadRequestsAreRefusedByName) {
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  auto r = Good();
  r.set_model("other");
  ExpectRefused(r, absl::StatusCode::kNotFound, AllOf(HasSubstr("other"), HasSubstr("\"m\"")));
  r = Good();
  r.clear_token_ids();
  ExpectRefused(r, kInvalid, HasSubstr("token_ids"));
  r = Good();
  r.set_token_ids(3, 512);
  ExpectRefused(r, kInvalid, AllOf(HasSubstr("token_ids[3]"), HasSubstr("512")));
  r = Good();
  r.set_token_ids(3, -1);
  ExpectRefused(r, kInvalid, HasSubstr("token_ids[3]"));
  r = Good();
  r.set_token_ids(3, std::int64_t{1} << 32);  // would be 0 if narrowed
  ExpectRefused(r, kInvalid, HasSubstr("token_ids[3]"));
  r = Good();
  r.mutable_stop()->set_max_tokens(10000);
  ExpectRefused(r, kInvalid, AllOf(HasSubstr("2048"), HasSubstr("20"), HasSubstr("10000")));
  r = Good();
  r.mutable_stop()->set_max_tokens(0);
  ExpectRefused(r, kInvalid, HasSubstr("max_tokens"));
  r = Good();
  r.mutable_stop()->set_max_tokens(-5);
  ExpectRefused(r, kInvalid, HasSubstr("max_tokens"));
  r = Request("m", Prompt(2049, 1), "oracle");
  ExpectRefused(r, kInvalid, AllOf(HasSubstr("2048"), HasSubstr("2049")));
  r = Good();
  r.mutable_sampling()->set_temperature(std::numeric_limits<double>::quiet_NaN());
  ExpectRefused(r, kInvalid, HasSubstr("temperature"));
  r = Good();
  r.mutable_sampling()->set_top_p(0);
  ExpectRefused(r, kInvalid, HasSubstr("top_p"));
  r = Good();
  (*r.mutable_sampling()->mutable_logit_bias())[512] = 5;
  ExpectRefused(r, kInvalid, HasSubstr("logit_bias"));
  r = Good();
  (*r.mutable_sampling()->mutable_logit_bias())[5] = 1e9;
  ExpectRefused(r, kInvalid, HasSubstr("logit_bias"));
  r = Good();
  r.mutable_stop()->add_stop("");
  ExpectRefused(r, kInvalid, HasSubstr("stop"));
  r = Good();
  r.set_strategy("teleport");
  ExpectRefused(r, kInvalid, AllOf(HasSubstr("strategy"), HasSubstr("teleport")));
  r = Request("m", Prompt(200, 1), "oracle");
  r.add_block_hashes(std::string(32, '0'));
  ExpectRefused(r, kInvalid, HasSubstr("block_hashes[0]"));
  EXPECT_TRUE(Ask(Good()).status.ok());
  ExpectNothingHeld();
}

TEST_F(DecodeServiceTest, ReplayContinuesExactly) {
  auto r = Good();
  r.mutable_sampling()->set_temperature(0.9);
  r.mutable_sampling()->set_seed(42);
  r.mutable_stop()->set_max_tokens(16);
  const Answer whole = Ask(r);
  ASSERT_EQ(whole.tokens.size(), 16u);
  for (int i = 0; i < 6; ++i) r.add_resume_token_ids(whole.tokens[i]);
  const Answer rest = Ask(r);
  ASSERT_TRUE(rest.status.ok()) << rest.status;
  EXPECT_EQ(rest.tokens, std::vector<std::int64_t>(whole.tokens.begin() + 6, whole.tokens.end()));
}

TEST_F(DecodeServiceTest, InfoAndAssets) {
  grpc::ClientContext context;
  v1::DecodeInfo info;
  ASSERT_TRUE(stub_->Info(&context, {}, &info).ok());
  ASSERT_EQ(info.models_size(), 1);
  const v1::DecodeModel& m = info.models(0);
  EXPECT_EQ(m.name(), "m");
  EXPECT_EQ(m.max_context_tokens(), 2048u);
  EXPECT_EQ(m.vocab_size(), 512u);
  EXPECT_THAT(m.eos_token_ids(), testing::Contains(kTinyImEnd));
  const auto fetch = [&](const std::string& digest) {
    grpc::ClientContext c;
    v1::GetAssetRequest request;
    request.set_digest(digest);
    auto stream = stub_->GetAsset(&c, request);
    std::string data;
    v1::AssetChunk chunk;
    while (stream->Read(&chunk)) data += chunk.data();
    return std::make_pair(stream->Finish(), data);
  };
  const auto [status, json] = fetch(m.tokenizer_digest());
  ASSERT_TRUE(status.ok()) << status.error_message();
  auto tokenizer = Tokenizer::FromJson(json);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->vocab_size(), 512);
  EXPECT_EQ((*tokenizer)->content_digest(), m.tokenizer_digest());
  EXPECT_THAT(fetch(m.chat_template_digest()).second, HasSubstr("<|im_start|>"));
  EXPECT_EQ(fetch("00").first.error_code(), grpc::StatusCode::NOT_FOUND);
}

TEST_F(DecodeServiceTest, DrainRefusesNewAndFinishesOld) {
  auto r = Good();
  r.mutable_stop()->set_max_tokens(400);
  Answer old;
  std::thread asking([&] { old = Ask(r); });
  EXPECT_TRUE(Eventually([&] { return decode_->service().live_sessions() == 1; }));
  decode_->service().StartDraining();
  EXPECT_EQ(Ask(Good()).status.code(), absl::StatusCode::kUnavailable);
  decode_->Drain(std::chrono::seconds(30));
  asking.join();
  EXPECT_TRUE(old.status.ok()) << old.status;
  EXPECT_EQ(old.tokens.size(), 400u);
}

TEST_F(DecodeServiceTest, DeadlineFreesEverything) {
  auto r = Good();
  r.mutable_stop()->set_max_tokens(2000);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(50));
  auto stream = stub_->Generate(&context, r);
  v1::DecodeEvent event;
  while (stream->Read(&event)) {
  }
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  ExpectNothingHeld();
}

TEST_F(DecodeServiceTest, PortInUseIsOneClearError) {
  auto config = Common<DecodeConfig>("second", {Entry("m", "a")});
  config.rpc.port = decode_->grpc_port();
  auto node = DecodeNode::Start(config, nullptr);
  ASSERT_FALSE(node.ok());
  EXPECT_THAT(std::string(node.status().message()), HasSubstr(absl::StrCat(decode_->grpc_port())));
}

// Before minutes of loading, not after.
TEST_F(DecodeServiceTest, PortInUseIsFoundBeforeTheModelIsLoaded) {
  std::vector<std::string> lines;
  LogOptions options;
  options.sink = [&](std::string_view line) { lines.emplace_back(line); };
  InitLogging(options);
  auto config = Common<DecodeConfig>("second", {Entry("m", "a")});
  config.http.port = decode_->http_port();
  const absl::Status status = DecodeNode::Start(config, nullptr).status();
  InitLogging({});
  EXPECT_THAT(std::string(status.message()), HasSubstr(absl::StrCat(decode_->http_port())));
  EXPECT_THAT(lines, testing::Not(testing::Contains(HasSubstr("loaded m"))));
}

// Case ldr-01: a start that fails for its files fails before a port is opened; all of them are
// named.
TEST_F(DecodeServiceTest, BrokenModelsAreAllNamedBeforeAPortIsOpened) {
  WriteTinyLlama(dir_ / "cut", {.seed = 3});
  const auto file = dir_ / "cut" / "model.safetensors";
  std::filesystem::resize_file(file, std::filesystem::file_size(file) - 100);
  auto config = Common<DecodeConfig>(
      "bad", {Entry("one", "nowhere"), Entry("two", "a"), Entry("three", "cut")});
  config.http.port = decode_->http_port();  // had it been opened, that would be the error
  const absl::Status status = DecodeNode::Start(config, nullptr).status();
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("models[0] (one)"), HasSubstr("nowhere"),
                    HasSubstr("models[2] (three)"), HasSubstr("model.safetensors")));
  EXPECT_THAT(std::string(status.message()), testing::Not(HasSubstr("models[1]")));
}

}  // namespace
}  // namespace baton
