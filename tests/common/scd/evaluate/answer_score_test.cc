#include "common/scd/evaluate/answer_score.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace baton {
namespace {

struct ScoredCase {
  std::string answer;
  std::vector<std::string> references;
  std::string normalised;
  bool exact;
  double f1;
};

// What scripts/consumers/scoring.py gives (Python 3.11).
const ScoredCase kScored[] = {
    {"The Cat sat.", {"cat sat"}, "cat sat", true, 1},
    {"a  the AN  other", {"other"}, "other", true, 1},
    {"Oslo, Norway!", {"oslo norway", "Oslo"}, "oslo norway", true, 1},
    {"", {"the"}, "", true, 1},
    {"", {""}, "", true, 1},
    {"x", {""}, "x", false, 0},
    {"they're there", {"theyre there"}, "theyre there", true, 1},
    {"Stra\303\237e\302\240\303\204",
     {"stra\303\237e \303\244"},
     "stra\303\237e \303\244",
     true,
     1},
    {"A\314\201ndale", {"\314\201ndale"}, "\314\201ndale", true, 1},
    {"the the cat cat dog", {"cat dog dog"}, "cat cat dog", false, 2.0 / 3},
    {"12,345 coins", {"12345 coins"}, "12345 coins", true, 1},
    {"in the red barn", {"red barn", "a barn in red"}, "in red barn", false, 1},
    {"\316\237\316\224\316\237\316\243",
     {"\316\277\316\264\316\277\317\202"},
     "\316\277\316\264\316\277\317\202",
     true,
     1},
    {"an_a", {"ana"}, "ana", true, 1},
    {"tea\342\200\203the\343\200\200cup", {"tea cup"}, "tea cup", true, 1},
    {"yes\342\200\224a no", {"yes\342\200\224 no"}, "yes\342\200\224 no", true, 1},
    {"\304\260stanbul", {"i\314\207stanbul"}, "i\314\207stanbul", true, 1},
};

TEST(AnswerScoreTest, EqualsTheScriptsThatConsumersAreJudgedWith) {
  for (const ScoredCase& c : kScored) {
    EXPECT_EQ(NormaliseAnswer(c.answer), c.normalised) << c.answer;
    EXPECT_EQ(ExactMatch(c.answer, c.references), c.exact) << c.answer;
    EXPECT_DOUBLE_EQ(AnswerF1(c.answer, c.references), c.f1) << c.answer;
  }
}

TEST(AnswerScoreTest, StripsAsPythonDoes) {
  EXPECT_EQ(StripSpace(" \t\n x y \n"), "x y");
  EXPECT_EQ(StripSpace("\343\200\200x\302\240"), "x");
  EXPECT_EQ(StripSpace(" \n"), "");
  EXPECT_EQ(StripSpace(""), "");
  EXPECT_EQ(StripSpace("x"), "x");
}

}  // namespace
}  // namespace baton
