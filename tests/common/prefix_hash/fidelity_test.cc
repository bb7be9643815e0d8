#include "common/prefix_hash/fidelity.h"

#include <gtest/gtest.h>

namespace baton {
namespace {

Fidelity Must(std::string_view text) {
  auto parsed = Fidelity::Parse(text);
  EXPECT_TRUE(parsed.ok()) << parsed.status();
  return parsed.ok() ? *parsed : Fidelity();
}

TEST(FidelityTest, PrintsWhatItParses) {
  for (const char* text : {"exact", "exact+budget", "raw:0123abcd", "raw:b+budget",
                           "code:scd-v1@2.5", "code:q4/64@4", "code:c@0.1+budget"}) {
    EXPECT_EQ(Must(text).ToString(), text);
  }
  EXPECT_EQ(Must("code:c@2.50"), Fidelity::Code("c", 2.5));
}

TEST(FidelityTest, RefusesWithTheText) {
  for (const char* text : {"", "Exact", "raw:", "raw", "raw:a b", "raw:a@1", "code:c", "code:@2",
                           "code:c@", "code:c@0", "code:c@-1", "code:c@nan", "code:c@inf",
                           "code:c@2x", "exact+budget+budget", "+budget", "raw:a+quick"}) {
    const auto parsed = Fidelity::Parse(text);
    ASSERT_FALSE(parsed.ok()) << text;
    EXPECT_NE(parsed.status().message().find(text), absl::string_view::npos) << text;
  }
}

TEST(FidelityTest, Satisfies) {
  const auto serves = [](const char* least, const char* have) {
    return Satisfies(Must(least), Must(have));
  };
  // oracle takes only exact.
  EXPECT_TRUE(serves("exact", "exact"));
  EXPECT_FALSE(serves("exact", "raw:b"));
  EXPECT_FALSE(serves("exact", "code:c@8"));
  EXPECT_FALSE(serves("exact", "exact+budget"));
  // scd takes its codec at its rate or better, and exact.
  EXPECT_TRUE(serves("code:c@2", "exact"));
  EXPECT_TRUE(serves("code:c@2", "code:c@2"));
  EXPECT_TRUE(serves("code:c@2", "code:c@4"));
  EXPECT_FALSE(serves("code:c@2", "code:c@1.9"));
  EXPECT_FALSE(serves("code:c@2", "code:d@4"));
  EXPECT_FALSE(serves("code:c@2", "raw:b"));
  EXPECT_FALSE(serves("raw:b", "code:c@8"));
  EXPECT_TRUE(serves("raw:b", "raw:b"));
  EXPECT_FALSE(serves("raw:b", "raw:a"));
  EXPECT_FALSE(serves("code:c@2", "code:c@2+budget"));
  EXPECT_TRUE(serves("code:c@2+budget", "code:c@2"));
}

TEST(FidelityTest, LaterBlocksInherit) {
  const auto combine = [](const char* prefix, const char* own) {
    return Combine(Must(prefix), Must(own)).ToString();
  };
  EXPECT_EQ(combine("exact", "exact"), "exact");
  EXPECT_EQ(combine("raw:b", "exact"), "raw:b");
  EXPECT_EQ(combine("code:c@2", "exact"), "code:c@2");
  EXPECT_EQ(combine("exact", "raw:b"), "raw:b");
  EXPECT_EQ(combine("raw:b", "raw:b"), "raw:b");
  EXPECT_EQ(combine("code:c@2", "code:c@4"), "code:c@2");
  EXPECT_EQ(combine("code:c@4", "code:c@2"), "code:c@2");
  EXPECT_EQ(combine("raw:b+budget", "exact"), "raw:b+budget");
  EXPECT_EQ(combine("exact", "exact+budget"), "exact+budget");
}

// A request that accepts one approximation has not accepted another one below it.
TEST(FidelityTest, TwoApproximationsServeNobody) {
  const std::pair<const char*, const char*> pairs[] = {
      {"raw:a", "raw:b"}, {"code:a@8", "code:b@2"}, {"raw:b", "code:c@2"}, {"code:c@2", "raw:b"}};
  for (const auto& [prefix, own] : pairs) {
    for (const auto& [p, o] : {std::pair(prefix, own), std::pair(own, prefix)}) {
      const Fidelity mixed = Combine(Must(p), Must(o));
      EXPECT_TRUE(Fidelity::Parse(mixed.ToString()).ok()) << mixed.ToString();
      for (const Fidelity& least : {Fidelity::Exact(), Must(p), Must(o), mixed}) {
        EXPECT_FALSE(Satisfies(least, mixed)) << p << " below " << o << " for " << least.ToString();
      }
      EXPECT_FALSE(Satisfies(Must(o), Combine(mixed, Fidelity::Exact())));
    }
  }
}

// Nothing computed over an approximate prefix may ever serve `oracle`.
TEST(FidelityTest, NothingBecomesExactAgain) {
  for (const char* prefix : {"raw:b", "code:c@16", "exact+budget"}) {
    EXPECT_FALSE(Satisfies(Fidelity::Exact(), Combine(Must(prefix), Fidelity::Exact()))) << prefix;
  }
}

}  // namespace
}  // namespace baton
