#include "prefill_node/block_coder.h"

#include <cstring>
#include <tuple>

#include "kernels/executor.h"
#include "tests/common/scd/coder_fixture.h"

namespace baton {
namespace {

class BlockCoderTest : public CoderFixture {
 protected:
  CodeJob Job(int blocks, std::int32_t first_block = 0) {
    CodeJob job;
    job.encoder = std::make_shared<const CodeEncoder>(codec_, executor_);
    job.cut = job.encoder->whole();
    job.space = "s";
    for (int i = 0; i < blocks; ++i) job.blocks.push_back({{static_cast<std::uint8_t>(i + 1)}});
    job.first_block = first_block;
    job.uncoded_tokens = 4;
    return job;
  }
  // The fixture's rows, over and over.
  StatesReady States(int layer, std::int32_t begin, std::int32_t end) const {
    StatesReady states{layer, begin, end, 24, {}};
    const std::vector<float> rows = Floats(layer, "rows");
    for (std::int32_t r = begin; r < end; ++r) {
      const auto row = rows.begin() + r % kCodeBlockRows * 24;
      states.rows.insert(states.rows.end(), row, row + 24);
    }
    return states;
  }

  // With a scale of 1, as of source h.
  StatesReady Scaled(int layer, std::int32_t begin, std::int32_t end) const {
    const StatesReady plain = States(layer, begin, end);
    StatesReady states{layer, begin, end, 25, {}};
    for (auto row = plain.rows.begin(); row != plain.rows.end(); row += 24) {
      states.rows.insert(states.rows.end(), row, row + 24);
      states.rows.push_back(1);
    }
    return states;
  }

  MetricRegistry metrics_;
  CodeStore store_{1 << 20, metrics_};
};

TEST_F(BlockCoderTest, ChunksOfAnyLengthGiveWholeBlocks) {
  BlockCoder coder(Job(3), store_);
  std::vector<std::shared_ptr<const BlockCodes>> blocks;
  std::int32_t next = 0;
  for (const auto& [begin, end] : {std::pair(0, 10), {10, 63}, {63, 65}, {65, 190}, {190, 192}}) {
    const StatesReady whole = coder.WholeBlocks(States(0, begin, end));
    EXPECT_EQ(whole.rows.size(), static_cast<std::size_t>(whole.end - whole.begin) * 24);
    if (whole.rows.empty()) continue;
    EXPECT_EQ(whole.begin, next);
    EXPECT_EQ(whole.end % kCodeBlockRows, 0);
    next = whole.end;
    for (auto& b : coder.Encode(whole)) blocks.push_back(b);
    coder.Keep(whole);
  }
  EXPECT_EQ(next, 192);
  ASSERT_EQ(blocks.size(), 3u);
  const std::vector<std::byte> want = Codes(0);
  EXPECT_EQ(std::memcmp(blocks[0]->layer(0), want.data(), want.size()), 0);
  // Only the prefix's first rows are left out.
  EXPECT_NE(std::memcmp(blocks[1]->layer(0), want.data(), want.size()), 0);
  EXPECT_EQ(std::memcmp(blocks[1]->layer(0), blocks[2]->layer(0), want.size()), 0);
}

TEST_F(BlockCoderTest, StoresABlockWhenItsLayersAreDone) {
  BlockCoder coder(Job(2), store_);
  const auto code = [&](const StatesReady& states) {
    coder.Encode(states);
    coder.Keep(states);
  };
  code(States(0, 0, 128));
  EXPECT_EQ(store_.bytes(), 0);
  code(States(1, 64, 128));
  const auto second = store_.Find(std::vector{coder.job().blocks[1]}, "s", coder.job().cut);
  ASSERT_EQ(second.size(), 1u);
  code(States(1, 0, 64));
  // The next transfer starts where the store ends.
  BlockCoder warm(Job(3, /*first_block=*/1), store_);
  warm.LookUp();
  EXPECT_EQ(warm.stored(), second);
  EXPECT_EQ(warm.next_row(), 128);
  BlockCoder cold(Job(1, /*first_block=*/0), store_);
  EXPECT_FALSE(cold.all_stored());
  cold.LookUp();
  EXPECT_EQ(cold.next_row(), 64);
  EXPECT_TRUE(cold.all_stored());
}

TEST_F(BlockCoderTest, OtherEncodersAreServedOnTheWay) {
  CodeJob job = Job(1);
  job.others.push_back({job.encoder, "t"});
  BlockCoder coder(job, store_);
  for (const int layer : {0, 1}) {
    const StatesReady states = States(layer, 0, 64);
    coder.Encode(states);
    coder.Keep(states);
  }
  for (const char* space : {"s", "t"}) {
    const auto blocks = store_.Find(job.blocks, space, job.cut);
    ASSERT_EQ(blocks.size(), 1u) << space;
    for (const int layer : {0, 1}) {
      const std::vector<std::byte> want = Codes(layer);
      EXPECT_EQ(std::memcmp(blocks[0]->layer(layer), want.data(), want.size()), 0);
    }
  }
}

// The second layer is run by the consumer: no codes, and nobody waits for them.
TEST_F(BlockCoderTest, LayersOfARunHaveNoCodes) {
  CodeJob job = Job(1);
  const auto plain = job.encoder;
  job.encoder = std::make_shared<const CodeEncoder>(RunOfBoth(), executor_);
  job.cut = job.encoder->whole();
  const std::vector<std::byte> want = Codes(0);
  {
    BlockCoder coder(job, store_);
    EXPECT_TRUE(coder.Wants(0));
    EXPECT_FALSE(coder.Wants(1));
    const StatesReady states = Scaled(0, 0, 64);
    coder.Encode(states);
    coder.Keep(states);
    const auto blocks = store_.Find(job.blocks, "s", job.cut);
    ASSERT_EQ(blocks.size(), 1u);
    EXPECT_EQ(blocks[0]->bytes(), job.cut.layers[0].block_bytes);
    EXPECT_EQ(std::memcmp(blocks[0]->layer(0), want.data(), want.size()), 0);
  }
  // Beside one that has codes of every layer.
  job.space = "run";
  job.others.push_back({plain, "plain"});
  BlockCoder both(job, store_);
  EXPECT_TRUE(both.Wants(1));
  for (const int layer : {0, 1}) {
    EXPECT_TRUE(store_.Find(job.blocks, "run", job.cut).empty());
    const StatesReady states = Scaled(layer, 0, 64);
    both.Encode(states);
    both.Keep(states);
  }
  EXPECT_EQ(store_.Find(job.blocks, "run", job.cut).size(), 1u);
  const auto blocks = store_.Find(job.blocks, "plain", plain->whole());
  ASSERT_EQ(blocks.size(), 1u);
  const std::vector<std::byte> second = Codes(1);
  EXPECT_EQ(std::memcmp(blocks[0]->layer(1), second.data(), second.size()), 0);
}

TEST_F(BlockCoderTest, TheTurnEndsWithTheLastBlock) {
  CodingTurns turns;
  BlockCoder coder(Job(2), store_);
  coder.HoldTurn(turns.Take(coder.missing(), {}));
  for (const auto& [layer, begin, end] : {std::tuple(0, 0, 128), {1, 0, 64}, {1, 64, 128}}) {
    EXPECT_EQ(turns.blocks_taken(), 2u);
    const StatesReady states = States(layer, begin, end);
    coder.Encode(states);
    coder.Keep(states);
  }
  EXPECT_EQ(turns.blocks_taken(), 0u);
}

}  // namespace
}  // namespace baton
