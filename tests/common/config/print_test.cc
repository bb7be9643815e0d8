#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/common/config/sample_config.h"

namespace baton::config {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

TEST(PrintTest, EffectiveShowsValuesDefaultsAndWhatIsNotSet) {
  const auto config = ParseSample(
      "port: 0\npeers: [a]\nengine: {chunked: false, pool_bytes: 2GiB, patience: 1s}\n"
      "models: [{name: \"no\", path: /m}]\n");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(PrintEffective(SampleSection(), *config),
            "name: node  # default\n"
            "token: \"\"  # default\n"
            "port: 0\n"
            "peers: [a]\n"
            "engine:\n"
            "  max_batch: 64  # default\n"
            "  patience: 1s\n"
            "  share: 0.9  # default\n"
            "  learning_rate: 0.001  # default\n"
            "  pool_bytes: 2GiB\n"
            "  cache_bytes: null  # not set\n"
            "  threads: null  # not set\n"
            "  chunked: false\n"
            "  policy: fcfs  # default\n"
            "models:\n"
            "  - name: \"no\"\n"
            "    path: /m\n"
            "    weight: 1  # default\n");
}

TEST(PrintTest, EffectiveReadsBackToTheSame) {
  SampleConfig config;
  config.name = "a: \"b\" \\ #\xC3\xA9";
  config.peers = {"no", "010", "", "x\ny", "-", "~"};
  config.peers.resize(3);
  config.engine.share = 1.0 / 3;
  config.engine.learning_rate = 1e-5;
  config.engine.threads = 3;
  config.engine.patience = std::chrono::milliseconds(1234);
  config.engine.pool_bytes = 123456;
  config.models = {{"x", "/a b/c", 0}, {"true", "${", 255}};
  const auto back = ParseSample(PrintEffective(SampleSection(), config));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(*back, config);
}

TEST(PrintTest, SecretsAreNotPrinted) {
  SampleConfig config;
  config.token = "hunter2";
  const std::string text = PrintEffective(SampleSection(), config);
  EXPECT_THAT(text, Not(HasSubstr("hunter2")));
  EXPECT_THAT(text, HasSubstr("token: \"********\""));
}

TEST(PrintTest, ReferenceHasEveryKey) {
  const std::string page = Reference(SampleSection(), "Sample");
  EXPECT_THAT(page, HasSubstr("# Sample\n"));
  EXPECT_THAT(page, HasSubstr("YAML 1.2"));
  EXPECT_THAT(page, HasSubstr("| `engine.max_batch` | integer | `64` | 1 to 4096 | restart | "
                              "Sequences per step. Environment: `SAMPLE_MAX_BATCH`. |"));
  EXPECT_THAT(page, HasSubstr("| `engine.patience` | duration | `250ms` | 0s to 5m | yes | Longest "
                              "wait. Example: `250ms`. |"));
  EXPECT_THAT(page, HasSubstr("| `engine.threads` | integer | not set | 1 to 64 or auto |"));
  EXPECT_THAT(page, HasSubstr("| `engine.policy` | name | `fcfs` | fcfs, priority |"));
  EXPECT_THAT(page, HasSubstr("## `models[]`"));
  EXPECT_THAT(page, HasSubstr("| `models[].path` | text | required |"));
  EXPECT_THAT(page, HasSubstr("File \\| folder."));  // a bar would end the cell
}

TEST(PrintTest, SaysWhatCanChangeAndAppliesOnlyThat) {
  SampleConfig before;
  before.models = {{"a", "/a", 1}};
  SampleConfig after = before;
  after.port = 1;
  after.peers = {"x"};
  after.engine.patience = std::chrono::milliseconds(9);
  after.engine.max_batch = 3;
  after.models[0].path = "/b";
  const ReloadPlan plan = CompareForReload(SampleSection(), before, after);
  EXPECT_THAT(plan.reloadable, ElementsAre("peers", "engine.patience"));
  EXPECT_THAT(plan.needs_restart, ElementsAre("port", "engine.max_batch", "models[0].path"));
  const SampleConfig now = ApplyReloadable(SampleSection(), before, after);
  EXPECT_EQ(now.port, before.port);
  EXPECT_EQ(now.peers, after.peers);
  EXPECT_EQ(now.engine.patience, after.engine.patience);
  EXPECT_EQ(now.engine.max_batch, before.engine.max_batch);
  EXPECT_EQ(now.models, before.models);
  after.models.clear();
  EXPECT_THAT(CompareForReload(SampleSection(), now, after).needs_restart,
              ElementsAre("port", "engine.max_batch", "models"));
  EXPECT_THAT(CompareForReload(SampleSection(), now, now).needs_restart, IsEmpty());
}

}  // namespace
}  // namespace baton::config
