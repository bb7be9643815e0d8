#include "common/base/fault.h"

#include <gtest/gtest.h>

#include <csignal>
#include <cstdlib>

namespace baton {
namespace {

class FaultTest : public ::testing::Test {
 protected:
  ~FaultTest() override {
    ClearFaults();
    unsetenv("BATON_FAULTS");
  }
};

TEST_F(FaultTest, OffByDefault) {
  EXPECT_TRUE(InitFaultsFromEnv().ok());
  EXPECT_TRUE(BATON_FAULT_POINT("a").ok());
}

TEST_F(FaultTest, ScopedErrorNamesThePoint) {
  {
    ScopedFault fault("producer.before_send", {});
    const absl::Status status = BATON_FAULT_POINT("producer.before_send");
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(status.message(), "injected fault at producer.before_send");
    EXPECT_TRUE(BATON_FAULT_POINT("other").ok());
    EXPECT_EQ(FaultHits("producer.before_send"), 1);
  }
  EXPECT_TRUE(BATON_FAULT_POINT("producer.before_send").ok());
}

TEST_F(FaultTest, OwnErrorAndMaxHits) {
  Fault fault;
  fault.max_hits = 2;
  fault.error = absl::DataLossError("bad bytes");
  ScopedFault scoped("x", fault);
  EXPECT_EQ(BATON_FAULT_POINT("x"), absl::DataLossError("bad bytes"));
  EXPECT_FALSE(BATON_FAULT_POINT("x").ok());
  EXPECT_TRUE(BATON_FAULT_POINT("x").ok());
  EXPECT_EQ(FaultHits("x"), 2);
}

TEST_F(FaultTest, ProbabilityIsRoughlyMet) {
  Fault fault;
  fault.probability = 0.25;
  ScopedFault scoped("x", fault);
  int failures = 0;
  for (int i = 0; i < 4000; ++i) failures += !BATON_FAULT_POINT("x").ok();
  EXPECT_GT(failures, 800);  // 1000 expected, deviation 27
  EXPECT_LT(failures, 1200);
}

TEST_F(FaultTest, EnvironmentSetsSeveral) {
  setenv("BATON_FAULTS", "a.b=error,c=delay:10", 1);
  ASSERT_TRUE(InitFaultsFromEnv().ok());
  EXPECT_FALSE(BATON_FAULT_POINT("a.b").ok());
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(BATON_FAULT_POINT("c").ok());
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(10));
}

TEST_F(FaultTest, BadSpecificationsSetNothing) {
  for (const char* text : {"",
                           "a",
                           "a=",
                           "=error",
                           "a=oops",
                           "a=error:0",
                           "a=error:1.1",
                           "a=error:nan",
                           "a=error:x",
                           "a=error:-1",
                           "a=delay",
                           "a=delay:x",
                           "a=delay:-1",
                           "a=delay:999999999",
                           "a=kill:2",
                           "a=error:1:2",
                           "a==error",
                           "A b=error",
                           "ok=error,bad",
                           "a=error,a=error",
                           "a=error,",
                           "a=error:"}) {
    const absl::Status status = AddFaults(text);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_TRUE(BATON_FAULT_POINT("ok").ok()) << text;
    EXPECT_TRUE(BATON_FAULT_POINT("a").ok()) << text;
  }
  setenv("BATON_FAULTS", "nonsense", 1);
  EXPECT_EQ(InitFaultsFromEnv().message().substr(0, 13), "BATON_FAULTS:");
}

TEST_F(FaultTest, KillKills) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(
      {
        (void)AddFaults("x=kill");
        (void)BATON_FAULT_POINT("x");
      },
      testing::KilledBySignal(SIGKILL), "");
}

}  // namespace
}  // namespace baton
