#include "common/config/load.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "tests/common/config/sample_config.h"
#include "tests/support/temp_dir.h"

namespace baton::config {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

SampleConfig Must(std::string_view text, std::vector<std::string> sets = {},
                  std::vector<std::pair<std::string, std::string>> env = {}) {
  auto config = ParseSample(text, std::move(sets), std::move(env));
  EXPECT_TRUE(config.ok()) << config.status();
  return config.ok() ? *config : SampleConfig();
}

TEST(LoadTest, EmptyFileGivesTheMemberInitialisers) { EXPECT_EQ(Must(""), SampleConfig()); }

TEST(LoadTest, EveryKindOfField) {
  const SampleConfig c = Must(R"(
name: decode-0
port: 0
peers: [a, "b c"]
engine:
  max_batch: 8
  patience: 1.5s
  share: .5
  learning_rate: 1e-5
  pool_bytes: 2GiB
  cache_bytes: 512MiB
  threads: 4
  chunked: false
  policy: priority
models:
  - name: base
    path: /models/base.gguf
    weight: 255
  - {name: tuned, path: /models/tuned}
)");
  EXPECT_EQ(c.name, "decode-0");
  EXPECT_EQ(c.port, 0);
  EXPECT_THAT(c.peers, ElementsAre("a", "b c"));
  EXPECT_EQ(c.engine.max_batch, 8);
  EXPECT_EQ(c.engine.patience, std::chrono::milliseconds(1500));
  EXPECT_EQ(c.engine.share, 0.5);
  EXPECT_EQ(c.engine.learning_rate, 1e-5);
  EXPECT_EQ(c.engine.pool_bytes, int64_t{2} << 30);
  EXPECT_EQ(c.engine.cache_bytes, 512 << 20);
  EXPECT_EQ(c.engine.threads, 4);
  EXPECT_FALSE(c.engine.chunked);
  EXPECT_EQ(c.engine.policy, Policy::kPriority);
  ASSERT_EQ(c.models.size(), 2u);
  EXPECT_EQ(c.models[0], (ModelConfig{"base", "/models/base.gguf", 255}));
  EXPECT_EQ(c.models[1], (ModelConfig{"tuned", "/models/tuned", 1}));
}

// Case yml-01: false, 0, null and "" are what they say; 0 where senseless is refused.
TEST(LoadTest, ExplicitFalseZeroNullAndEmpty) {
  const SampleConfig c = Must(
      "token: \"\"\nport: 0\npeers: []\nengine: {chunked: false, share: 0, patience: 0,"
      " max_batch: null, threads: null}\nmodels: null\n");
  EXPECT_FALSE(c.engine.chunked);
  EXPECT_EQ(c.engine.share, 0);
  EXPECT_EQ(c.engine.patience.count(), 0);
  EXPECT_EQ(c.engine.max_batch, 64);
  EXPECT_EQ(c.engine.threads, std::nullopt);
  EXPECT_EQ(c.port, 0);
  EXPECT_EQ(SampleError("engine:\n  max_batch: 0\n"),
            "sample.yaml:2: engine.max_batch: 0 is out of range; allowed: 1 to 4096");
  EXPECT_EQ(SampleError("name: \"\"\n"),
            "sample.yaml:1: name: must not be empty; allowed: 1 to 20 characters");
}

// Case yml-02: text stays text whatever it looks like.
TEST(LoadTest, TextFieldsKeepTheSpelling) {
  for (const char* text : {"no", "NO", "010", "1.10", "12:30", "0x10", "1_000", "on", "y", "1e-5",
                           "true", ".5", "auto"}) {
    EXPECT_EQ(Must(std::string("name: ") + text).name, text);
  }
  EXPECT_EQ(Must("name: \"null\"").name, "null");
  EXPECT_EQ(Must("name: null").name, "node");
  EXPECT_THAT(Must("peers: [no, 010, 1.10]").peers, ElementsAre("no", "010", "1.10"));
}

TEST(LoadTest, NumbersAreTypedByTheTable) {
  EXPECT_EQ(Must("engine: {learning_rate: 1.0e-5}").engine.learning_rate, 1e-5);
  EXPECT_EQ(Must("engine: {learning_rate: 1E-3}").engine.learning_rate, 1e-3);
  EXPECT_EQ(Must("engine: {share: 1}").engine.share, 1.0);
  for (const char* bad : {"0x10", "010", "1_000", "1.5", "1e3", "12:30", "yes", "eight"}) {
    EXPECT_THAT(SampleError(std::string("engine:\n  max_batch: ") + bad),
                AllOf(HasSubstr("sample.yaml:2: engine.max_batch: "), HasSubstr(bad)));
  }
  EXPECT_THAT(SampleError("port: \"8080\""),
              AllOf(HasSubstr("\"8080\" is quoted text where a port is expected"),
                    HasSubstr("without quotes")));
  EXPECT_THAT(SampleError("engine: {chunked: yes}"), HasSubstr("write true"));
  EXPECT_THAT(SampleError("engine: {chunked: off}"), HasSubstr("write false"));
  EXPECT_THAT(SampleError("port: 65536"), HasSubstr("0 to 65535"));
  EXPECT_THAT(SampleError("port: -1"), HasSubstr("out of range"));
  EXPECT_THAT(SampleError("engine: {learning_rate: 0}"), HasSubstr("allowed: above 0, at most 1"));
  EXPECT_THAT(SampleError("engine: {share: 1.01}"), HasSubstr("allowed: 0 to 1"));
  EXPECT_THAT(SampleError("engine: {share: .nan}"), HasSubstr("'.nan' is not a number"));
  EXPECT_THAT(SampleError("engine: {patience: 30}"), HasSubstr("not a duration"));
  EXPECT_THAT(SampleError("engine: {patience: 10us}"), HasSubstr("finer than 1ms"));
  EXPECT_THAT(SampleError("engine: {patience: 6m}"), HasSubstr("allowed: 0s to 5m"));
  EXPECT_THAT(SampleError("engine: {pool_bytes: 1KiB}"), HasSubstr("allowed: 4KiB to 1TiB"));
  EXPECT_THAT(SampleError("models: [{name: a, path: b, weight: 256}]"),
              HasSubstr("models[0].weight: 256 is out of range; allowed: 0 to 255"));
}

TEST(LoadTest, OptionalsTakeAuto) {
  EXPECT_EQ(Must("engine: {threads: auto, cache_bytes: auto}").engine, EngineConfig());
  EXPECT_THAT(SampleError("engine: {threads: autp}"), HasSubstr("'autp' is not an integer"));
  EXPECT_THAT(SampleError("engine: {threads: 0}"), HasSubstr("allowed: 1 to 64 or auto"));
  EXPECT_THAT(SampleError("engine: {max_batch: auto}"), HasSubstr("'auto' is not an integer"));
}

TEST(LoadTest, EnumsSuggest) {
  EXPECT_THAT(SampleError("engine: {policy: priorty}"),
              HasSubstr("'priorty' is not allowed; allowed: fcfs, priority; did you mean "
                        "'priority'?"));
}

TEST(LoadTest, UnknownAndRepeatedKeys) {
  EXPECT_EQ(SampleError("engine:\n  max_bacth: 8\n"),
            "sample.yaml:2: engine.max_bacth: unknown key; did you mean 'max_batch'?");
  EXPECT_EQ(SampleError("zebra: 1\n"), "sample.yaml:1: zebra: unknown key");
  EXPECT_EQ(SampleError("port: 1\nname: a\nport: 2\n"),
            "sample.yaml:3: port: is given more than once");
  EXPECT_THAT(SampleError("<<: {port: 1}\n"), HasSubstr("<<: unknown key"));
}

TEST(LoadTest, WrongShapes) {
  EXPECT_THAT(SampleError("engine: 5"),
              HasSubstr("engine: expected a mapping, got a single value"));
  EXPECT_THAT(SampleError("engine: [1]"), HasSubstr("expected a mapping, got a list"));
  EXPECT_THAT(SampleError("port: [1]"), HasSubstr("port: expected a port, got a list"));
  EXPECT_THAT(SampleError("name: {a: b}"), HasSubstr("name: expected text, got a mapping"));
  EXPECT_THAT(SampleError("peers: a"), HasSubstr("expected a list, got a single value; write [a]"));
  EXPECT_THAT(SampleError("peers: [a, [b]]"), HasSubstr("item 1: expected text, got a list"));
  EXPECT_THAT(SampleError("peers: [a, b, c, d]"), HasSubstr("4 items; allowed: 0 to 3 items"));
  EXPECT_THAT(SampleError("models: {name: a}"), HasSubstr("models: expected a list of mappings"));
  EXPECT_THAT(SampleError("models: [a]"), HasSubstr("models[0]: expected a mapping"));
  EXPECT_THAT(SampleError("- a\n"), HasSubstr("expected a mapping of keys, got a list"));
  EXPECT_THAT(SampleError("just text"), HasSubstr("expected a mapping of keys"));
}

TEST(LoadTest, RequiredKeys) {
  EXPECT_EQ(SampleError("models:\n  - path: x\n"),
            "sample.yaml:2: models[0].name: is required but missing");
  EXPECT_THAT(SampleError("models:\n  - path: x\n    name:\n"),
              HasSubstr("models[0].name: is required but null"));
}

TEST(LoadTest, AllErrorsAtOnce) {
  EXPECT_EQ(SampleError("name: a\nport: x\nengine:\n  max_batch: 0\n  chunked: no\nprot: 1\n"),
            "sample.yaml:6: prot: unknown key; did you mean 'port'?\n"
            "sample.yaml:2: port: 'x' is not an integer (decimal digits only, such as 8080)\n"
            "sample.yaml:4: engine.max_batch: 0 is out of range; allowed: 1 to 4096\n"
            "sample.yaml:5: engine.chunked: 'no' is not a boolean; write false");
}

TEST(LoadTest, ChecksAcrossFieldsNameTheKeysLine) {
  EXPECT_EQ(SampleError("engine:\n  pool_bytes: 1MiB\n  cache_bytes: 2MiB\n"),
            "sample.yaml:3: engine.cache_bytes: must not exceed pool_bytes");
}

TEST(LoadTest, SetOverridesWithTheSameTyping) {
  const SampleConfig c = Must("port: 1\nengine: {max_batch: 2}\n",
                              {"port=3", "engine.max_batch=4", "engine.patience=1s", "name=no",
                               "peers=[a, b]", "engine.threads=auto"});
  EXPECT_EQ(c.port, 3);
  EXPECT_EQ(c.engine.max_batch, 4);
  EXPECT_EQ(c.engine.patience, std::chrono::seconds(1));
  EXPECT_EQ(c.name, "no");
  EXPECT_THAT(c.peers, ElementsAre("a", "b"));
  // Taken as it stands, no YAML quoting needed.
  EXPECT_EQ(Must("", {"name=a: b #c"}).name, "a: b #c");
  EXPECT_EQ(Must("", {"name=x=y"}).name, "x=y");
  EXPECT_EQ(Must("", {"name='quoted'"}).name, "quoted");
  EXPECT_EQ(Must("name: a", {"name="}).name, "node");
  EXPECT_EQ(Must("port: 1", {"port=2", "port=3"}).port, 3);
}

TEST(LoadTest, SetReachesIntoLists) {
  const SampleConfig c =
      Must("models: [{name: a, path: x}]\npeers: [p]\n",
           {"models[0].path=y", "models[1].name=b", "models[1].path=z", "peers[1]=q"});
  ASSERT_EQ(c.models.size(), 2u);
  EXPECT_EQ(c.models[0].path, "y");
  EXPECT_EQ(c.models[1].name, "b");
  EXPECT_THAT(c.peers, ElementsAre("p", "q"));
  EXPECT_THAT(Must("", {"models=[{name: a, path: b}]"}).models[0].path, "b");
}

TEST(LoadTest, SetErrorsNameTheAssignment) {
  EXPECT_EQ(SampleError("", {"engine.max_batch=0"}),
            "--set engine.max_batch: engine.max_batch: 0 is out of range; allowed: 1 to 4096");
  EXPECT_THAT(SampleError("", {"engine.max_bacth=1"}), HasSubstr("did you mean 'max_batch'?"));
  EXPECT_THAT(SampleError("", {"port"}), HasSubstr("expected key=value"));
  EXPECT_THAT(SampleError("", {"=5"}), HasSubstr("expected key=value"));
  EXPECT_THAT(SampleError("", {"port.x=5"}), HasSubstr("no keys below"));
  EXPECT_THAT(SampleError("", {"port[0]=5"}), HasSubstr("is no list"));
  EXPECT_THAT(SampleError("", {"models[5].name=5"}), HasSubstr("next index is 0"));
  EXPECT_THAT(SampleError("", {"models[x].name=5"}), HasSubstr("index"));
  EXPECT_THAT(SampleError("", {"models.name=5"}), HasSubstr("write an index"));
  EXPECT_THAT(SampleError("engine: 5", {"engine.max_batch=1"}), HasSubstr("single value"));
  EXPECT_THAT(SampleError("", {"peers=[a"}), HasSubstr("--set peers"));
  EXPECT_THAT(SampleError("", {"port=\"1\""}), HasSubstr("quoted"));
}

TEST(LoadTest, EnvironmentOverridesNamedFieldsOnly) {
  const std::vector<std::pair<std::string, std::string>> env = {{"SAMPLE_MAX_BATCH", "9"},
                                                                {"PORT", "1"}};
  EXPECT_EQ(Must("engine: {max_batch: 2}", {}, env).engine.max_batch, 9);
  EXPECT_EQ(Must("", {}, env).engine.max_batch, 9);
  EXPECT_EQ(Must("engine:", {}, env).engine.max_batch, 9);
  EXPECT_EQ(Must("", {"engine.max_batch=7"}, env).engine.max_batch, 7);
  EXPECT_EQ(Must("", {}, env).port, 7000);
  EXPECT_EQ(Must("engine: {max_batch: 2}", {}, {{"SAMPLE_MAX_BATCH", ""}}).engine.max_batch, 2);
  const auto bad = ParseSample("", {}, {{"SAMPLE_MAX_BATCH", "many"}});
  EXPECT_THAT(std::string(bad.status().message()),
              HasSubstr("environment variable SAMPLE_MAX_BATCH: engine.max_batch: 'many'"));
}

TEST(LoadTest, ExpansionOnlyWhereAllowed) {
  const std::vector<std::pair<std::string, std::string>> env = {{"DIR", "/data"}, {"T", "s3cr3t"}};
  EXPECT_EQ(Must("models: [{name: a, path: \"${DIR}/m.gguf\"}]", {}, env).models[0].path,
            "/data/m.gguf");
  EXPECT_EQ(Must("token: ${T}${T}", {}, env).token, "s3cr3ts3cr3t");
  EXPECT_EQ(Must("token: a$b${not a name}$", {}, env).token, "a$b${not a name}$");
  EXPECT_THAT(SampleError("token: ${UNSET}"), HasSubstr("environment variable UNSET is not set"));
  EXPECT_THAT(SampleError("name: ${DIR}"), HasSubstr("does not expand environment variables"));
}

TEST(LoadTest, Files) {
  const TempDir dir;
  const std::string path = dir.File("c.yaml");
  std::ofstream(path) << "port: 12\n";
  EXPECT_EQ(LoadFile(SampleSection(), path)->port, 12);
  EXPECT_EQ(LoadFile(SampleSection(), dir.File("none.yaml")).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_FALSE(LoadFile(SampleSection(), dir.path()).ok());
  std::ofstream(path) << std::string(2 << 20, '#');
  EXPECT_THAT(std::string(LoadFile(SampleSection(), path).status().message()),
              HasSubstr("at most 1048576"));
}

}  // namespace
}  // namespace baton::config
