#include "common/scd/coding.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(CodingTest, NamesReadBack) {
  for (const Coding coding : {Coding::kRaw, Coding::kQ4, Coding::kReuse, Coding::kSelective}) {
    EXPECT_EQ(ParseCoding(CodingName(coding)), coding);
  }
  for (const char* name : {"", "RAW", "q", "oracle", "unknown"}) {
    EXPECT_FALSE(ParseCoding(name)) << name;
  }
}

}  // namespace
}  // namespace baton
