#include "common/config/reload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/common/config/sample_config.h"
#include "tests/support/temp_dir.h"

namespace baton::config {
namespace {

using std::chrono::milliseconds;
using ::testing::Contains;
using ::testing::HasSubstr;

class ReloadTest : public ::testing::Test {
 protected:
  ReloadTest() {
    LogOptions options;
    options.sink = [this](std::string_view line) { lines_.emplace_back(line); };
    InitLogging(options);
  }
  ~ReloadTest() override { InitLogging({}); }

  absl::Status Reload(const std::string& text, SampleConfig& running) {
    dir_.Write("reload_test.yaml", text);
    return ReloadFile(SampleSection(), dir_.File("reload_test.yaml"), {}, running);
  }

  TempDir dir_;
  std::vector<std::string> lines_;
};

TEST_F(ReloadTest, TakesOverWhatMayChangeAndNamesTheRest) {
  SampleConfig running;
  ASSERT_TRUE(Reload("port: 7001\nengine: {patience: 1s}\n", running).ok());
  EXPECT_EQ(running.engine.patience, milliseconds(1000));
  EXPECT_EQ(running.port, 7000);
  EXPECT_THAT(lines_, Contains(HasSubstr("reloaded: engine.patience")));
  EXPECT_THAT(lines_, Contains(HasSubstr("needs a restart: port")));
}

TEST_F(ReloadTest, ABadFileChangesNothing) {
  SampleConfig running;
  EXPECT_FALSE(Reload("engine: {patience: 1s}\nport: x\n", running).ok());
  EXPECT_EQ(running, SampleConfig());
  EXPECT_THAT(lines_, Contains(HasSubstr("reload_test.yaml:2: port")));
}

}  // namespace
}  // namespace baton::config
