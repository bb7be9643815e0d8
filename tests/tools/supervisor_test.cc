#include "tools/supervisor.h"

#include <gtest/gtest.h>

#include <chrono>
#include <thread>

namespace baton::tools {
namespace {

template <typename F>
bool Eventually(F condition, std::chrono::seconds limit = std::chrono::seconds(20)) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  return true;
}

TEST(SupervisorTest, ARefusedProgramIsNamed) {
  Supervisor s;
  const absl::Status status = s.Start({"ghost", {"/nonexistent/program"}});
  EXPECT_FALSE(status.ok());
  EXPECT_NE(status.message().find("/nonexistent/program"), std::string::npos);
}

TEST(SupervisorTest, AChildThatDiesIsStartedAgain) {
  Supervisor s;
  ASSERT_TRUE(s.Start({"brief", {"/bin/sh", "-c", "sleep 0.1; exit 3"}}).ok());
  ASSERT_TRUE(Eventually([&] {
    EXPECT_TRUE(s.Poll().ok());
    return !s.Running("brief");
  }));
  EXPECT_TRUE(Eventually([&] {
    EXPECT_TRUE(s.Poll().ok());
    return s.Running("brief");
  }));
}

TEST(SupervisorTest, StopAllEndsChildrenThatIgnoreSigterm) {
  Supervisor s;
  ASSERT_TRUE(s.Start({"polite", {"/bin/sh", "-c", "sleep 60"}}).ok());
  ASSERT_TRUE(
      s.Start({"stubborn", {"/bin/sh", "-c", "trap '' TERM; while :; do sleep 0.1; done"}}).ok());
  const auto start = std::chrono::steady_clock::now();
  s.StopAll(std::chrono::milliseconds(500));
  // Nor do they wait for the shell's own child, which holds the pipe for a minute.
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(20));
  EXPECT_FALSE(s.Running("polite"));
  EXPECT_FALSE(s.Running("stubborn"));
}

}  // namespace
}  // namespace baton::tools
