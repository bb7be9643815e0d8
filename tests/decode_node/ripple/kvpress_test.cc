// Kept positions equal those of kvpress 0.5.5 (make_fixtures.py).
#include <cmath>
#include <map>
#include <string>

#include "decode_node/ripple/attention_scores.h"
#include "decode_node/ripple/budgets.h"
#include "decode_node/ripple/group_select.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/test_data.h"

namespace baton {
namespace {

using Json = nlohmann::json;

std::vector<float> Generate(std::uint64_t& state, std::int64_t count) {
  std::vector<float> out;
  for (std::int64_t i = 0; i < count; ++i) {
    state += 0x9E3779B97F4A7C15ULL;
    std::uint64_t z = state;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ULL;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBULL;
    out.push_back(static_cast<float>((z ^ (z >> 31)) >> 40) / (1 << 22) - 2);
  }
  return out;
}

// The last `window` of `tokens` queries of each head.
std::vector<float> Window(const std::vector<float>& queries, const AttentionShape& shape,
                          std::int64_t window) {
  std::vector<float> out;
  for (std::int64_t h = 0; h < shape.heads; ++h) {
    const auto end = queries.begin() + (h + 1) * shape.tokens * shape.head_dim;
    out.insert(out.end(), end - window * shape.head_dim, end);
  }
  return out;
}

KeptPositions Select(const Json& c, Executor& executor) {
  const AttentionShape shape{c["heads"], c["kv_heads"], c["tokens"], c["head_dim"]};
  std::uint64_t state = c["seed"];
  const auto queries = Generate(state, shape.heads * shape.tokens * shape.head_dim);
  const auto keys = Generate(state, shape.kv_heads * shape.tokens * shape.head_dim);
  const std::string press = c["press"];
  const double share = 1 - c["ratio"].get<double>();
  const auto budget = static_cast<std::int64_t>(static_cast<double>(shape.tokens) * share);
  if (press == "streaming") return SelectStreaming(shape.kv_heads, shape.tokens, budget);
  if (press == "observed") {
    const auto p = WindowAttention(shape, shape.tokens, queries, keys, executor);
    return SelectTop(AccumulatedScores(shape, p, Accumulation::kMean, executor), shape.kv_heads,
                     budget);
  }
  const std::int64_t window = c["window"];
  const auto p = WindowAttention(shape, window, Window(queries, shape, window), keys, executor);
  const auto scores = SnapKvScores(shape, window, p, {.kernel = c["kernel"]}, executor);
  if (press == "snapkv") return SelectTop(scores, shape.kv_heads, budget);
  if (press == "adakv") return SelectAdaKv(scores, shape.kv_heads, budget);
  const auto starts = ChunkStarts(shape.tokens);
  const auto count = static_cast<std::int64_t>(static_cast<double>(starts.size()) * share);
  return SelectGroups(scores, shape.kv_heads, starts, std::max<std::int64_t>(1, count));
}

Json Expected() {
  return Json::parse(
      ReadFileOrEmpty(TestDataDir() + "/../decode_node/ripple/kvpress_expected.json"));
}

TEST(KvPressTest, KeepsTheSamePositions) {
  const auto pool = MakeThreadPool(3);
  SerialExecutor serial;
  std::map<std::string, int> counts;
  const Json expected = Expected();
  for (const Json& c : expected["cases"]) {
    const KeptPositions kept = Select(c, serial);
    ++counts[c["press"]];
    EXPECT_EQ(kept, c["kept"].get<KeptPositions>())
        << c["press"] << " seed " << c["seed"] << " ratio " << c["ratio"] << " window "
        << c["window"];
    EXPECT_EQ(kept, Select(c, *pool));
  }
  const std::map<std::string, int> all = {
      {"adakv", 19}, {"chunkkv", 21}, {"observed", 9}, {"snapkv", 19}, {"streaming", 9}};
  EXPECT_EQ(counts, all);
}

// kvpress rounds a float line; an exact total is never further than a token and its rest from it.
TEST(KvPressTest, PyramidHasTheSameShape) {
  const Json expected = Expected();
  for (const Json& c : expected["pyramid"]) {
    const int layers = c["layers"];
    const double mean = c["tokens"].get<double>() * (1 - c["ratio"].get<double>());
    const auto total = static_cast<std::int64_t>(std::llround(mean * layers));
    const auto ours = PyramidBudgets(layers, c["beta"], {.total = total, .context = c["tokens"]});
    ASSERT_TRUE(ours.ok()) << ours.status();
    EXPECT_EQ(ours->total, total);
    for (int i = 0; i < layers; ++i) {
      EXPECT_NEAR(static_cast<double>(ours->tokens[i]), c["budgets"][i].get<double>(), 1.0)
          << layers << " layers, layer " << i;
    }
  }
}

}  // namespace
}  // namespace baton
