#include "common/base/progress.h"

#include <string>

#include "gtest/gtest.h"

namespace baton {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(ProgressTest, LineSaysRateAndWhatIsLeft) {
  EXPECT_EQ(ProgressLine(120, 500, "requests", seconds(3)),
            "120 of 500 requests (24 %), 40.0/s, 10 s left");
  EXPECT_EQ(ProgressLine(0, 500, "requests", seconds(3)), "0 of 500 requests (0 %)");
  EXPECT_EQ(ProgressLine(1000, 1000, "tokens", seconds(4)),
            "1000 of 1000 tokens (100 %), 250/s, 4.0 s");
}

TEST(ProgressTest, LogGetsALineEveryTenSecondsAndTheLast) {
  ManualClock clock;
  testing::internal::CaptureStderr();
  {
    Progress progress("rows", 100, /*terminal=*/false, clock);
    for (int i = 1; i <= 100; ++i) {
      clock.Advance(milliseconds(250));
      progress.Update(i);
    }
    progress.Update(100);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "40 of 100 rows (40 %), 4.0/s, 15 s left\n"
            "80 of 100 rows (80 %), 4.0/s, 5 s left\n"
            "100 of 100 rows (100 %), 4.0/s, 25.0 s\n");
}

TEST(ProgressTest, TerminalLineIsRewrittenAndEnded) {
  ManualClock clock;
  testing::internal::CaptureStderr();
  {
    Progress progress("rows", 4, /*terminal=*/true, clock);
    clock.Advance(seconds(1));
    progress.Update(1);
    progress.Update(2);  // too soon to be drawn
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "\r\033[K1 of 4 rows (25 %), 1.0/s, 3 s left\n");
}

}  // namespace
}  // namespace baton
