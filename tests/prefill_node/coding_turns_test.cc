#include "prefill_node/coding_turns.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

CodingTurns::Key KeyOf(std::uint8_t block) { return {BlockHash{{block}}, "s"}; }

TEST(CodingTurnsTest, WhoComesLaterIsCalledWhenTheTurnEnds) {
  CodingTurns turns;
  int called = 0;
  auto turn = turns.Take(KeyOf(1), [] { FAIL() << "it had its turn"; });
  ASSERT_NE(turn, nullptr);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(turns.Take(KeyOf(1), [&] { ++called; }), nullptr);
  EXPECT_NE(turns.Take(KeyOf(2), {}), nullptr) << "another block is another turn";
  EXPECT_EQ(called, 0);
  turn.reset();
  EXPECT_EQ(called, 3);
  EXPECT_NE(turns.Take(KeyOf(1), {}), nullptr);
}

TEST(CodingTurnsTest, WhoWasCalledMayTakeTheTurn) {
  CodingTurns turns;
  std::unique_ptr<CodingTurns::Turn> next;
  auto turn = turns.Take(KeyOf(1), {});
  EXPECT_EQ(turns.Take(KeyOf(1), [&] { next = turns.Take(KeyOf(1), {}); }), nullptr);
  turn.reset();
  EXPECT_NE(next, nullptr);
  EXPECT_EQ(turns.taken(), 1u);
}

TEST(CodingTurnsTest, ATurnOutlivesTheTable) {
  std::unique_ptr<CodingTurns::Turn> turn;
  {
    CodingTurns turns;
    turn = turns.Take(KeyOf(1), {});
  }
  turn.reset();
}

}  // namespace
}  // namespace baton
