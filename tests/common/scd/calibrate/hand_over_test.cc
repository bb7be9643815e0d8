#include "common/scd/calibrate/hand_over.h"

#include <vector>

#include "gtest/gtest.h"
#include "tests/common/scd/calibrate/tiny_pair.h"

namespace baton {
namespace {

TEST(HandOverTest, StepsAndRewindsGiveTheBitsOfARun) {
  TinyPair tiny(0.5f);
  const std::vector<PrefixWay> ways = {UncodedWay("raw", tiny.pair().consumer, tiny.executor())};
  auto handed =
      HandOver::Create(tiny.pair().producer, tiny.pair().consumer, ways, 80, tiny.executor());
  ASSERT_TRUE(handed.ok()) << handed.status();
  const std::vector<std::int32_t> tokens = RandomDocuments(1, 64, 8).documents[0].tokens;
  const absl::Span<const std::int32_t> prefix(tokens.data(), 40), rest(tokens.data() + 40, 3);
  (*handed)->Take(prefix);
  ASSERT_EQ((*handed)->caches(), 2U);
  EXPECT_EQ((*handed)->cache(1).size(), 40);
  std::vector<std::vector<float>> last;
  for (std::size_t i = 0; i < 2; ++i) {
    std::vector<int> layers;
    const float* h =
        (*handed)->Run(i, rest, 40, [&](int layer, const float*) { layers.push_back(layer); });
    EXPECT_EQ(layers, (std::vector<int>{0, 1, 2}));
    last.emplace_back(h + 2 * 64, h + 3 * 64);
    (*handed)->Rewind(i, 40);
    EXPECT_EQ((*handed)->cache(i).size(), 40);
  }
  EXPECT_NE(last[0], last[1]);  // another's K/V
  const std::vector<std::size_t> both = {0, 1};
  std::vector<float> stepped;
  for (std::int32_t t = 0; t < 3; ++t) {
    const std::vector<std::int32_t> token(2, rest[t]), position(2, 40 + t);
    const float* h = (*handed)->Step(both, token, position);
    stepped.assign(h, h + 2 * 64);
  }
  EXPECT_EQ(std::vector<float>(stepped.begin(), stepped.begin() + 64), last[0]);
  EXPECT_EQ(std::vector<float>(stepped.begin() + 64, stepped.end()), last[1]);
}

}  // namespace
}  // namespace baton
