#include "common/scd/code_cut.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace baton {
namespace {

using testing::HasSubstr;

// Bytes a token: 1 + 1 for the first components, 4 in all.
CodeShape Shape() { return {{{{8, 4, 4}, {1.0f, 0.9f, 0.2f}}, {{8, 8}, {5.0f, 0.5f}}}}; }

std::vector<int> Components(const CodeCut& cut) {
  std::vector<int> components;
  for (const auto& layer : cut.layers) components.push_back(layer.components);
  return components;
}

TEST(CodeCut, WholeHoldsEveryComponent) {
  const CodeCut whole = WholeCode(Shape());
  EXPECT_EQ(Components(whole), (std::vector<int>{3, 2}));
  EXPECT_EQ(whole.layers[0].block_bytes, 64u * 2);
  EXPECT_EQ(whole.layers[1].block_bytes, 64u * 2);
  EXPECT_EQ(whole.bytes_per_token(), 4);
}

TEST(CodeCut, TheMostImportantFirstOverAllLayers) {
  EXPECT_EQ(Components(*CutCode(Shape(), 2)), (std::vector<int>{1, 1}));
  // 4 bits of layer 0, then 8 of layer 1 do not fit into what is left: nothing behind them comes.
  EXPECT_EQ(Components(*CutCode(Shape(), 3)), (std::vector<int>{2, 1}));
  EXPECT_EQ(Components(*CutCode(Shape(), 4)), (std::vector<int>{3, 2}));
  EXPECT_EQ(Components(*CutCode(Shape(), 4000)), (std::vector<int>{3, 2}));
}

TEST(CodeCut, CutsAreNested) {
  CodeShape shape;
  for (int l = 0; l < 5; ++l) {
    CodeShape::Layer layer;
    for (int i = 0; i < 12; ++i) {
      layer.bits.push_back(kCodeBits[(l + i) % 6]);
      layer.importance.push_back(static_cast<float>(100 - i * (l + 3)));
    }
    shape.layers.push_back(layer);
  }
  auto smaller = CutCode(shape, 3);
  ASSERT_TRUE(smaller.ok()) << smaller.status();
  for (std::uint32_t bytes = 4; bytes < 40; ++bytes) {
    auto larger = CutCode(shape, bytes);
    ASSERT_TRUE(larger.ok());
    EXPECT_LE(larger->bytes_per_token(), bytes);
    for (std::size_t l = 0; l < shape.layers.size(); ++l) {
      EXPECT_LE(smaller->layers[l].components, larger->layers[l].components);
    }
    smaller = std::move(larger);
  }
}

TEST(CodeCut, NothingOfANativeLayerTravels) {
  CodeShape shape = Shape();
  shape.layers.insert(shape.layers.begin() + 1, CodeShape::Layer());
  EXPECT_EQ(Components(WholeCode(shape)), (std::vector<int>{3, 0, 2}));
  EXPECT_EQ(WholeCode(shape).layers[1].block_bytes, 0u);
  EXPECT_EQ(Components(*CutCode(shape, 2)), (std::vector<int>{1, 0, 1}));
  EXPECT_EQ(Components(*CutCode(shape, 3)), (std::vector<int>{2, 0, 1}));
}

TEST(CodeCut, TooSmallABudgetIsRefusedWithTheSmallest) {
  const auto cut = CutCode(Shape(), 1);
  EXPECT_EQ(cut.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(cut.status().message()), HasSubstr("takes 2 at least and 4 in all"));
}

}  // namespace
}  // namespace baton
