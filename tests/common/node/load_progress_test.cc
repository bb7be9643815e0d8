#include "common/node/load_progress.h"

#include <string>
#include <vector>

#include "common/base/logging.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t kMiB = 1 << 20;

TEST(LoadProgressTest, TextHasRateAndTimeLeft) {
  EXPECT_EQ(ProgressText(100 * kMiB, 400 * kMiB, seconds(2)),
            "100.0 of 400.0 MiB (25 %), 50 MiB/s, 6 s left");
  EXPECT_EQ(ProgressText(0, 400 * kMiB, seconds(2)), "0.0 of 400.0 MiB (0 %)");
  EXPECT_EQ(ProgressText(5, 400 * kMiB, seconds(0)), "0.0 of 400.0 MiB (0 %)");
  EXPECT_EQ(ProgressText(kMiB, kMiB, seconds(1)), "1.0 of 1.0 MiB (100 %), 1 MiB/s, 0 s left");
  EXPECT_EQ(ProgressText(0, 0, seconds(1)), "0.0 of 0.0 MiB (100 %)");
}

struct LoadProgressLines : ::testing::Test {
  LoadProgressLines() {
    LogOptions options;
    options.sink = [this](std::string_view line) { lines.emplace_back(line); };
    InitLogging(options);
  }
  ~LoadProgressLines() override { InitLogging({}); }

  ManualClock clock;
  std::vector<std::string> lines;
};

TEST_F(LoadProgressLines, LogsNowAndThenWhereThereIsNoTerminal) {
  LoadProgress progress("m", /*terminal=*/false, clock);
  for (int i = 1; i <= 120; ++i) {
    clock.Advance(milliseconds(100));
    progress.Update(i * kMiB, 200 * kMiB);
  }
  ASSERT_EQ(lines.size(), 2u);  // after 5 and 10 of 12 seconds
  EXPECT_THAT(lines[0], HasSubstr("loading m: 50.0 of 200.0 MiB (25 %), 10 MiB/s, 15 s left"));
  progress.Finish("8.0 MiB of it shared");
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_THAT(lines[2], AllOf(HasSubstr("loaded m: 120.0 MiB in 12.0 s (10 MiB/s)"),
                              HasSubstr("8.0 MiB of it shared")));
}

TEST_F(LoadProgressLines, RewritesOneLineOfATerminal) {
  testing::internal::CaptureStderr();
  {
    LoadProgress progress("m", /*terminal=*/true, clock);
    for (int i = 1; i <= 10; ++i) {
      clock.Advance(milliseconds(50));
      progress.Update(i * kMiB, 10 * kMiB);
    }
  }  // did not finish: the error that follows begins on a clean line
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_TRUE(lines.empty());
  EXPECT_EQ(text.find('\n'), std::string::npos);
  EXPECT_THAT(text, HasSubstr("\r\033[Kloading m: 2.0 of 10.0 MiB (20 %)"));
  EXPECT_EQ(text.substr(text.size() - 4), "\r\033[K");
}

}  // namespace
}  // namespace baton
