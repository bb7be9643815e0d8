#include "common/scd/calibrate/patch_journal.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temp_dir.h"

namespace baton {
namespace {

using Sets = std::vector<std::vector<std::size_t>>;

// What a set is worth, and how many were asked for.
PatchJudge Counting(int& asked) {
  return [&asked](const Sets& sets) -> absl::StatusOr<std::vector<double>> {
    std::vector<double> kl;
    for (const auto& set : sets) kl.push_back(1.0 / (3 + static_cast<double>(set.size())));
    asked += static_cast<int>(sets.size());
    return kl;
  };
}

TEST(PatchJournalTest, WhatIsKnownIsNotJudgedAgain) {
  const TempDir dir;
  const std::string path = dir.File("a.patches");
  int asked = 0;
  {
    PatchJournal journal(path, "one");
    const PatchJudge judge = journal.Remember(Counting(asked));
    EXPECT_THAT(*judge({{}, {1}}), testing::ElementsAre(1.0 / 3, 1.0 / 4));
    EXPECT_THAT(*judge({{1}, {7, 2}}), testing::ElementsAre(1.0 / 4, 1.0 / 5));
    EXPECT_EQ(asked, 3);
  }
  {
    PatchJournal journal(path, "one");
    const PatchJudge judge = journal.Remember(Counting(asked));
    EXPECT_THAT(*judge({{2, 7}, {}, {3}}), testing::ElementsAre(1.0 / 5, 1.0 / 3, 1.0 / 4));
    EXPECT_EQ(asked, 4);
  }
  PatchJournal other(path, "two");
  EXPECT_TRUE(other.Remember(Counting(asked))({{1}}).ok());
  EXPECT_EQ(asked, 5);
  dir.Write("a.patches", R"({"key":"two","kl":[[["x"],0.5]]})");
  PatchJournal torn(path, "two");
  EXPECT_TRUE(torn.Remember(Counting(asked))({{1}}).ok());
  EXPECT_EQ(asked, 6);
}

TEST(PatchJournalTest, ErrorsPass) {
  const TempDir dir;
  int asked = 0;
  PatchJournal journal(dir.File("no/folder/a.patches"), "one");
  EXPECT_EQ(journal.Remember(Counting(asked))({{1}}).status().code(),
            absl::StatusCode::kUnavailable);
  PatchJournal unnamed("", "one");
  EXPECT_TRUE(unnamed.Remember(Counting(asked))({{1}}).ok());
  const PatchJudge failing = [](const Sets&) -> absl::StatusOr<std::vector<double>> {
    return absl::ResourceExhaustedError("full");
  };
  EXPECT_EQ(unnamed.Remember(failing)({{2}}).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace baton
