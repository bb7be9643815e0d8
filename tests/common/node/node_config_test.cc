#include "common/node/node_config.h"

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "common/config/load.h"
#include "common/node/command_line.h"
#include "common/node/space_proto.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace baton {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(NodeConfigTest, ModelEntry) {
  auto e = config::Parse(ModelEntrySection(),
                         "name: m\npath: /x.gguf\nweight_dtype: bf16\nkv_dtype: fp16\n", "f.yaml");
  ASSERT_TRUE(e.ok()) << e.status();
  EXPECT_EQ(e->weight_dtype, WeightDType::kBF16);
  EXPECT_EQ(e->kv_dtype, DType::kF16);
  EXPECT_EQ(e->max_context, 0);
  e = config::Parse(ModelEntrySection(), "name: m\npath: /x.gguf\nweight_dtype: file\n", "f.yaml");
  ASSERT_TRUE(e.ok()) << e.status();
  EXPECT_EQ(e->weight_dtype, WeightDType::kFile);
  EXPECT_FALSE(config::Parse(ModelEntrySection(), "name: m\npath: /x\nkv_dtype: int8\n", "").ok());
  auto bad = config::Parse(ModelEntrySection(), "name: m\npath: /x\nkv_dtype: int3\n", "f.yaml");
  EXPECT_THAT(std::string(bad.status().message()),
              AllOf(HasSubstr("f.yaml:3"), HasSubstr("kv_dtype"), HasSubstr("bf16")));
}

TEST(NodeConfigTest, FilesOfAModelExpandTheEnvironment) {
  ASSERT_EQ(setenv("BATON_TEST_FILES", "/srv", 1), 0);
  const auto e = config::Parse(ModelEntrySection(),
                               "name: m\npath: ${BATON_TEST_FILES}/x.gguf\n"
                               "adapter: ${BATON_TEST_FILES}/lora\n"
                               "codecs: ['${BATON_TEST_FILES}/a', b]\n",
                               "f.yaml");
  unsetenv("BATON_TEST_FILES");
  ASSERT_TRUE(e.ok()) << e.status();
  EXPECT_EQ(e->path, "/srv/x.gguf");
  EXPECT_EQ(e->adapter, "/srv/lora");
  EXPECT_THAT(e->codecs, testing::ElementsAre("/srv/a", "b"));
}

TEST(NodeConfigTest, MemoryAutoIsNotSet) {
  auto m = config::Parse(MemorySection(), "kv_cache: auto\n", "f.yaml");
  ASSERT_TRUE(m.ok()) << m.status();
  EXPECT_FALSE(m->kv_cache);
  m = config::Parse(MemorySection(), "kv_cache: 2GiB\n", "f.yaml");
  ASSERT_TRUE(m.ok()) << m.status();
  EXPECT_EQ(*m->kv_cache, std::int64_t{2} << 30);
}

TEST(NodeConfigTest, NamesAreUnique) {
  ModelEntry a;
  a.name = "m";
  EXPECT_TRUE(CheckModelEntries({a}).ok());
  EXPECT_THAT(std::string(CheckModelEntries({a, a}).message()), HasSubstr("models[1].name"));
}

TEST(NodeConfigTest, GrpcAndHttpNeedAPortEach) {
  NodeConfig c;
  c.rpc.port = c.http.port = 7001;
  EXPECT_THAT(std::string(CheckNodeConfig(c).message()),
              AllOf(HasSubstr("http.port: 7001"), HasSubstr("rpc.port")));
  c.http.bind = "127.0.0.2";
  EXPECT_TRUE(CheckNodeConfig(c).ok());
  c = NodeConfig();  // any free ones
  EXPECT_TRUE(CheckNodeConfig(c).ok());
}

TEST(CommandLineTest, AdvertisedAddress) {
  EXPECT_EQ(AdvertisedAddress("", "127.0.0.1", 7001), "127.0.0.1:7001");
  EXPECT_EQ(AdvertisedAddress("host", "0.0.0.0", 7001), "host:7001");
  EXPECT_EQ(AdvertisedAddress("host:9", "0.0.0.0", 7001), "host:9");
  EXPECT_EQ(AdvertisedAddress("fd00::1", "::", 7001), "[fd00::1]:7001");
  EXPECT_EQ(AdvertisedAddress("[fd00::1]:9", "::", 7001), "[fd00::1]:9");
}

TEST(CommandLineTest, ParsesAndRefuses) {
  const char* good[] = {"x", "--config", "f", "--set", "a=1", "--set", "b=2", "--check"};
  const CommandLine line = ParseCommandLine(8, good, "x", "d");
  EXPECT_EQ(line.exit_code, -1);
  EXPECT_THAT(line.sets, testing::ElementsAre("a=1", "b=2"));
  EXPECT_TRUE(line.check);
  const char* bad[] = {"x", "--nonsense"};
  EXPECT_EQ(ParseCommandLine(2, bad, "x", "d").exit_code, 2);
  const char* version[] = {"x", "--version"};
  EXPECT_EQ(ParseCommandLine(2, version, "x", "d").exit_code, 0);
}

TEST(CommandLineTest, PortsFile) {
  const TempDir dir;
  const std::string path = dir.File("ports.json");
  ASSERT_TRUE(WritePortsFile(path, 5, 6).ok());
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  EXPECT_EQ(text.str(), "{\"grpc\": 5, \"http\": 6}\n");
  EXPECT_FALSE(WritePortsFile("/nonexistent/dir/p", 5, 6).ok());
}

Space MakeSpace() {
  return {SpaceKind::kBaseKv, "w", "t", {"fp32", 3, 2, 16, 16, 64, "theta=1"}, "",
          Fidelity::Exact()};
}

TEST(SpaceProtoTest, RoundTripAndTampering) {
  const Space space = MakeSpace();
  v1::Space proto = ToProto(space);
  auto back = FromProto(proto);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, space);
  Space codes = space;
  codes.kind = SpaceKind::kCode;
  codes.encoder_digest = "e";
  codes.fidelity = Fidelity::Code("scd", 2.5);
  EXPECT_EQ(*FromProto(ToProto(codes)), codes);
  proto.mutable_layout()->set_layers(4);
  EXPECT_EQ(FromProto(proto).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(FromProto(v1::Space()).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(SpaceProtoTest, WantsNameEachDifference) {
  const Space have = MakeSpace();
  Space want = have;
  EXPECT_TRUE(CompareWants(want, have).ok());
  want.weights_digest.clear();  // any weights
  EXPECT_TRUE(CompareWants(want, have).ok());
  want.weights_digest = "other";
  EXPECT_THAT(std::string(CompareWants(want, have).message()), HasSubstr("weights_digest"));
  want = have;
  want.layout.head_dim = 32;
  EXPECT_THAT(std::string(CompareWants(want, have).message()),
              AllOf(HasSubstr("head_dim"), HasSubstr("32"), HasSubstr("16")));
}

TEST(SpaceProtoTest, ProtocolVersions) {
  v1::NodeIdentity id = MakeIdentity("n", 1, "decode");
  EXPECT_TRUE(CheckProtocol(id).ok());
  id.set_protocol(id.protocol() + 1);
  EXPECT_EQ(CheckProtocol(id).code(), absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace baton
