// A model with a sliding window, in the engine: the cache, the batch and pre-emption do not show.
#include <vector>

#include "tests/common/engine/engine_fixture.h"

namespace baton {
namespace {

EngineSetup Windowed(std::int64_t pool_rows = 8192, int step_tokens = 128) {
  EngineSetup setup;
  setup.shape.seed = 4242;  // a model of its own
  setup.shape.sliding_window = 24;
  setup.options.step_tokens = step_tokens;
  setup.pool_rows = pool_rows;
  return setup;
}

TEST(EngineWindow, TheWindowMatters) {
  TestEngine windowed(Windowed());
  const auto& model = TinyModel(Windowed().shape).model;
  EXPECT_EQ(model->config().WindowOf(0), 24);
  // What is 3 layers of windows back cannot be seen.
  auto prompt = RandomPrompt(200, 1);
  const auto tokens = windowed.Run(Greedy(prompt, 40));
  prompt[10] ^= 1;
  EXPECT_EQ(windowed.Run(Greedy(prompt, 40)), tokens);
  prompt[190] ^= 1;
  EXPECT_NE(windowed.Run(Greedy(prompt, 40)), tokens);
}

// A prefix from the cache, cut anywhere against the window, gives the tokens of no cache.
TEST(EngineWindow, CachedPrefixesGiveTheSameTokens) {
  TestEngine plain(Windowed());
  TestEngine cached(Windowed());
  const auto prefix = RandomPrompt(192, 2);
  for (const std::size_t n : {64, 65, 100, 128, 150, 192}) {
    std::vector<std::int32_t> prompt(prefix.begin(), prefix.begin() + static_cast<long>(n));
    for (const std::int32_t token : RandomPrompt(30, static_cast<std::uint32_t>(n))) {
      prompt.push_back(token);
    }
    const auto want = plain.Run(Greedy(prompt, 50));
    const auto listener = cached.Start(Cached(Greedy(prompt, 50))).second;
    const FinishInfo info = listener->Wait();
    EXPECT_EQ(listener->ids(), want) << n;
    if (n >= 128) {
      EXPECT_GE(info.cached_tokens, 64) << n;
    }
  }
}

// Together, in small steps, with a pool so small that sequences are pre-empted and recomputed.
TEST(EngineWindow, BatchesChunksAndPreemptionGiveTheSameTokens) {
  TestEngine alone(Windowed());
  TestEngine crowded(Windowed(/*pool_rows=*/640, /*step_tokens=*/37));
  std::vector<std::vector<std::int32_t>> want;
  std::vector<std::shared_ptr<RecordingListener>> listeners;
  for (std::uint32_t i = 0; i < 6; ++i) {
    const auto request = Greedy(RandomPrompt(60 + 17 * i, 10 + i), 60);
    want.push_back(alone.Run(request));
    listeners.push_back(crowded.Start(request).second);
  }
  for (std::size_t i = 0; i < listeners.size(); ++i) {
    EXPECT_TRUE(listeners[i]->Wait().status.ok());
    EXPECT_EQ(listeners[i]->ids(), want[i]) << i;
  }
  EXPECT_TRUE(crowded.ComesBackEmpty());
}

}  // namespace
}  // namespace baton
