#include "common/config/reload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <string>
#include <vector>

#include "tests/common/config/sample_config.h"

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
    const std::string path = ::testing::TempDir() + std::to_string(getpid()) + "_reload_test.yaml";
    std::ofstream(path) << text;
    return ReloadFile(SampleSection(), path, {}, running);
  }

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
