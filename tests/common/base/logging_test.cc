#include "common/base/logging.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "absl/status/status.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class LoggingTest : public ::testing::Test {
 protected:
  void Start(LogFormat format, LogLevel level = LogLevel::kInfo) {
    LogOptions options;
    options.level = level;
    options.format = format;
    options.node = "decode-0";
    options.sink = [this](std::string_view line) { lines_.emplace_back(line); };
    InitLogging(options);
  }
  ~LoggingTest() override { InitLogging({}); }

  std::vector<std::string> lines_;
};

TEST_F(LoggingTest, TextLine) {
  Start(LogFormat::kText);
  BATON_LOG_INFO("loaded {} in {:.1f} s", "m.gguf", 1.25);
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_THAT(lines_[0], HasSubstr("Z info  [decode-0] loaded m.gguf in 1.2 s "
                                   "(tests/common/base/logging_test.cc:"));
}

TEST_F(LoggingTest, LevelsFilter) {
  Start(LogFormat::kText, LogLevel::kWarn);
  BATON_LOG_DEBUG("d");
  BATON_LOG_INFO("i");
  BATON_LOG_WARN("w");
  BATON_LOG_ERROR("e");
  EXPECT_EQ(lines_.size(), 2u);
  SetLogLevel(LogLevel::kDebug);
  EXPECT_EQ(GetLogLevel(), LogLevel::kDebug);
  BATON_LOG_DEBUG("d");
  EXPECT_EQ(lines_.size(), 3u);
  SetLogLevel(LogLevel::kOff);
  BATON_LOG_ERROR("e");
  EXPECT_EQ(lines_.size(), 3u);
}

TEST_F(LoggingTest, LogLinesWritesOneMessageALine) {
  Start(LogFormat::kText);
  LogLines(LogLevel::kInfo, "config: ", "a: 1\n  b: 2\n");
  LogLines(LogLevel::kDebug, "", "filtered");
  ASSERT_EQ(lines_.size(), 2u);
  EXPECT_THAT(lines_[0], HasSubstr("] config: a: 1 ("));
  EXPECT_THAT(lines_[1], HasSubstr("] config:   b: 2 ("));
}

TEST_F(LoggingTest, FilteredArgumentsAreNotEvaluated) {
  Start(LogFormat::kText, LogLevel::kError);
  int evaluated = 0;
  BATON_LOG_INFO("{}", ++evaluated);
  EXPECT_EQ(evaluated, 0);
}

TEST_F(LoggingTest, JsonLineSurvivesAnyText) {
  Start(LogFormat::kJson);
  const std::string nasty =
      "quote \" back \\ line\nret\r tab\t bell\x07 del\x7f bad\xff\xc3( \xC3\xA9";
  BATON_RLOG_WARN("req\"1", "{}", nasty);
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_EQ(lines_[0].find('\n'), std::string::npos);
  const auto json = nlohmann::json::parse(lines_[0]);
  EXPECT_EQ(json["level"], "warn");
  EXPECT_EQ(json["node"], "decode-0");
  EXPECT_EQ(json["request_id"], "req\"1");
  EXPECT_EQ(json["msg"],
            "quote \" back \\ line\nret\r tab\t bell\x07 del\x7f bad\xEF\xBF\xBD\xEF\xBF\xBD( "
            "\xC3\xA9");
  EXPECT_THAT(std::string(json["src"]), HasSubstr("logging_test.cc:"));
  EXPECT_TRUE(json["thread"].is_number());
}

TEST_F(LoggingTest, TextCannotForgeALine) {
  Start(LogFormat::kText);
  BATON_LOG_INFO("user said: {}", "x\n2026-01-01 error forged\x1b[31m");
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_THAT(lines_[0], HasSubstr("x\\n2026-01-01 error forged\\u001b[31m"));
}

TEST_F(LoggingTest, RequestIdIsPerThreadAndNests) {
  Start(LogFormat::kText);
  {
    ScopedRequestId outer("outer");
    BATON_RLOG_INFO("inner", "a");
    BATON_LOG_INFO("b");
    std::thread([] { BATON_LOG_INFO("c"); }).join();
  }
  BATON_LOG_INFO("d");
  ASSERT_EQ(lines_.size(), 4u);
  EXPECT_THAT(lines_[0], HasSubstr("[req inner] a"));
  EXPECT_THAT(lines_[1], HasSubstr("[req outer] b"));
  EXPECT_THAT(lines_[2], Not(HasSubstr("[req")));
  EXPECT_THAT(lines_[3], Not(HasSubstr("[req")));
}

TEST_F(LoggingTest, PrintsStatusAndAbslViews) {
  Start(LogFormat::kText);
  const absl::Status status = absl::NotFoundError("m.gguf");
  BATON_LOG_INFO("{} / {}", status, status.message());
  EXPECT_THAT(lines_[0], HasSubstr("NOT_FOUND: m.gguf / m.gguf"));
}

TEST_F(LoggingTest, RateLimitedWarningCountsWhatItLeftOut) {
  Start(LogFormat::kText);
  for (int i = 0; i < 100; ++i) BATON_LOG_EVERY_SEC(3600, "falling back {}", i);
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_THAT(lines_[0], HasSubstr("falling back 0"));
}

TEST(LogRateLimiterTest, Intervals) {
  LogRateLimiter limiter(100);
  EXPECT_TRUE(limiter.Allow(1000));
  EXPECT_FALSE(limiter.Allow(1050));
  EXPECT_FALSE(limiter.Allow(1099));
  EXPECT_TRUE(limiter.Allow(1100));
  EXPECT_EQ(limiter.TakeSuppressed(), 2u);
  EXPECT_EQ(limiter.TakeSuppressed(), 0u);
}

TEST_F(LoggingTest, ManyThreadsWholeLines) {
  Start(LogFormat::kJson);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([t] {
      for (int i = 0; i < 200; ++i) {
        BATON_RLOG_INFO("r" + std::to_string(t), "message {}", i);
        BATON_LOG_EVERY_SEC(0.0001, "limited {}", i);
      }
    });
  }
  for (int i = 0; i < 50; ++i) SetLogLevel(i % 2 ? LogLevel::kInfo : LogLevel::kDebug);
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(lines_.size(), 800u);
  for (const std::string& line : lines_) EXPECT_TRUE(nlohmann::json::accept(line)) << line;
}

}  // namespace
}  // namespace baton
