#include "prefill_node/coding_turns.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

std::vector<CodingTurns::Key> Blocks(std::initializer_list<std::uint8_t> blocks) {
  std::vector<CodingTurns::Key> keys;
  for (const std::uint8_t b : blocks) keys.emplace_back(BlockHash{{b}}, "s");
  return keys;
}

TEST(CodingTurnsTest, WhoComesLaterIsCalledWhenTheTurnEnds) {
  CodingTurns turns;
  int called = 0;
  auto turn = turns.Take(Blocks({1, 2, 3}), [] { FAIL() << "it had its turn"; });
  ASSERT_NE(turn, nullptr);
  const auto call = [&] { ++called; };
  EXPECT_EQ(turns.Take(Blocks({1, 2, 3}), call), nullptr);
  EXPECT_EQ(turns.Take(Blocks({1, 9}), call), nullptr);
  EXPECT_EQ(turns.Take(Blocks({3}), call), nullptr) << "the first blocks may be stored already";
  EXPECT_NE(turns.Take(Blocks({4, 5}), {}), nullptr) << "other blocks are another turn";
  EXPECT_EQ(called, 0);
  const std::uint64_t ended = turns.ended();
  turn.reset();
  EXPECT_EQ(turns.ended(), ended + 1);
  EXPECT_EQ(called, 3);
  EXPECT_NE(turns.Take(Blocks({1}), {}), nullptr);
}

TEST(CodingTurnsTest, BlocksOfAnotherTurnStayWithIt) {
  CodingTurns turns;
  auto later = turns.Take(Blocks({2, 3}), {});
  auto first = turns.Take(Blocks({1, 2, 3}), {});
  ASSERT_NE(first, nullptr);
  first.reset();
  EXPECT_EQ(turns.blocks_taken(), 2u);
  EXPECT_EQ(turns.Take(Blocks({2}), [] {}), nullptr);
}

TEST(CodingTurnsTest, WhoWasCalledMayTakeTheTurn) {
  CodingTurns turns;
  std::unique_ptr<CodingTurns::Turn> next;
  auto turn = turns.Take(Blocks({1}), {});
  EXPECT_EQ(turns.Take(Blocks({1}), [&] { next = turns.Take(Blocks({1}), {}); }), nullptr);
  turn.reset();
  EXPECT_NE(next, nullptr);
  EXPECT_EQ(turns.blocks_taken(), 1u);
}

TEST(CodingTurnsTest, ATurnOutlivesTheTable) {
  std::unique_ptr<CodingTurns::Turn> turn;
  {
    CodingTurns turns;
    turn = turns.Take(Blocks({1}), {});
  }
  turn.reset();
}

}  // namespace
}  // namespace baton
