#include "kernels/launch_plan.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(LaunchPlan, RowsUseWholeWarps) {
  EXPECT_EQ(PlanRows(0, 64, 100).blocks, 0);
  EXPECT_EQ(PlanRows(5, 64, 100).blocks, 5);
  EXPECT_EQ(PlanRows(5000, 64, 100).blocks, 100);
  for (int cols : {1, 31, 128, 129, 576, 4096, 100000}) {
    const RowLaunch p = PlanRows(3, cols, 100);
    EXPECT_EQ(p.threads % 32, 0);
    EXPECT_GE(p.threads, 32);
    EXPECT_LE(p.threads, 256);
  }
}

TEST(LaunchPlan, DecodeSplitsCoverAllPagesWithoutAnEmptyOne) {
  for (int tasks : {1, 3, 64, 1000}) {
    for (int pages : {1, 2, 7, 8, 9, 100, 1000, 8192}) {
      const DecodePlan p = PlanDecode(tasks, 32, 8, 128, pages, 132);
      EXPECT_GE(p.splits * p.pages_per_split, pages);
      EXPECT_LT((p.splits - 1) * p.pages_per_split, pages);
      EXPECT_LE(p.splits, 64);
      EXPECT_EQ(p.workspace_floats, static_cast<std::size_t>(tasks) * 32 * p.splits * 130);
    }
  }
}

TEST(LaunchPlan, ManySequencesNeedNoSplit) {
  EXPECT_EQ(PlanDecode(256, 32, 8, 128, 1000, 132).splits, 1);
  // One long sequence is cut until the chip is full.
  EXPECT_GE(PlanDecode(1, 32, 8, 128, 8192, 132).splits, 32);
}

TEST(LaunchPlan, SharedMemoryFitsEveryArchitecture) {
  // 99 KB is what sm_86 and sm_120 offer, the smallest of the supported ones.
  EXPECT_LE(PlanDecode(1, 64, 8, 128, 100, 132).shared_bytes, 99u * 1024);
  EXPECT_LE(PlanDecode(1, 16, 2, 256, 100, 132).shared_bytes, 99u * 1024);
}

}  // namespace
}  // namespace baton
