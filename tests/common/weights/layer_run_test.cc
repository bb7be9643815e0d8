#include "common/weights/layer_run.h"

#include "gtest/gtest.h"

namespace baton {
namespace {

TEST(LayerRunTest, HoldsItsLayers) {
  const LayerRun run{9, 24};
  EXPECT_EQ(run.size(), 15);
  EXPECT_FALSE(run.empty());
  EXPECT_FALSE(run.contains(8));
  EXPECT_TRUE(run.contains(9));
  EXPECT_TRUE(run.contains(23));
  EXPECT_FALSE(run.contains(24));
  EXPECT_TRUE(LayerRun().empty());
  EXPECT_FALSE(LayerRun().contains(0));
}

TEST(LayerRunTest, IsWrittenAndReadWithItsLastLayer) {
  for (const char* text : {"9-23", "0-0", "0-65535"}) {
    const auto run = ParseLayerRun(text);
    ASSERT_TRUE(run.ok()) << run.status();
    EXPECT_EQ(LayerRunText(*run), text);
  }
  EXPECT_EQ(*ParseLayerRun("9-23"), (LayerRun{9, 24}));
}

TEST(LayerRunTest, AnythingElseIsRefusedByName) {
  for (const char* text : {"", "-", "9", "9-", "-9", "9-8", "9--23", "-9-23", "9 - 23", "9-23 ",
                           "+9-23", "9-23-30", "x-23", "0-65536", "9-99999999999"}) {
    const auto run = ParseLayerRun(text);
    EXPECT_EQ(run.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_NE(run.status().message().find(std::string("'") + text + "'"), std::string::npos);
  }
}

}  // namespace
}  // namespace baton
