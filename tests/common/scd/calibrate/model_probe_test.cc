#include "common/scd/calibrate/model_probe.h"

#include <cmath>
#include <numeric>
#include <vector>

#include "common/model/model_weights.h"
#include "gtest/gtest.h"
#include "tests/common/scd/calibrate/tiny_pair.h"

namespace baton {
namespace {

// W (gamma * x) in float64 of rows [begin, begin + count) of the fused projection.
std::vector<double> Project(const LayerWeights& w, std::int64_t begin, std::int64_t count,
                            const float* x) {
  const std::int64_t in = w.qkv.cols();
  std::vector<float> row(static_cast<std::size_t>(in));
  std::vector<double> out;
  for (std::int64_t r = begin; r < begin + count; ++r) {
    w.qkv.UnpackRow(r, row.data());
    double sum = 0;
    for (std::int64_t i = 0; i < in; ++i) {
      sum += static_cast<double>(row[i]) * w.input_norm[i] * x[i];
    }
    out.push_back(sum);
  }
  return out;
}

TEST(ModelProbeTest, StatesAreTheProjectionsOfTheHiddenInput) {
  TinyPair tiny(0);
  const Model::Weights& w = tiny.model().weights();
  auto probe = ModelProbe::Create(tiny.pair().producer, 80, tiny.executor());
  ASSERT_TRUE(probe.ok()) << probe.status();
  const Document document = RandomDocuments(1, 64, 5).documents[0];
  const std::int64_t q_dim = w.q_dim(), kv = 2 * w.kv_dim();
  for (int round = 0; round < 2; ++round) {  // a second text starts anew
    (*probe)->Start(document.tokens);
    for (int layer = 0; layer < w.config.layers; ++layer) {
      const LayerStates& s = (*probe)->RunLayer(layer);
      ASSERT_EQ(s.rows, 64);
      for (const std::int64_t r : {0, 1, 37, 63}) {
        const float* x = s.hidden.data() + r * w.config.hidden;
        const double norm = std::inner_product(x, x + w.config.hidden, x, 0.0);
        // eps 1e-5 beside a mean square of about 1 or more.
        EXPECT_NEAR(norm / static_cast<double>(w.config.hidden), 1, 1e-4);
        const auto q = Project(w.layers[layer], 0, q_dim, x);
        // Sums of 64 products in fp32, and a rotation back and forth: a few 1e-6 of values near 1.
        for (std::int64_t i = 0; i < q_dim; ++i) EXPECT_NEAR(s.queries[r * q_dim + i], q[i], 3e-5);
        const auto own = Project(w.layers[layer], q_dim, kv, x);
        for (std::int64_t i = 0; i < kv; ++i) EXPECT_NEAR(s.kv[r * kv + i], own[i], 3e-5);
      }
    }
  }
}

TEST(ModelProbeTest, EnergyIsThatOfTheLayersInput) {
  TinyPair tiny(0);
  auto probe = ModelProbe::Create(tiny.pair().producer, 80, tiny.executor());
  ASSERT_TRUE(probe.ok());
  const Document document = RandomDocuments(1, 64, 6).documents[0];
  (*probe)->Start(document.tokens);
  const LayerStates& s = (*probe)->RunLayer(0);
  std::vector<float> row(64);
  ASSERT_EQ(s.energy.size(), 64U);
  for (std::size_t r = 0; r < 64; ++r) {  // the first layer's input is the embedding
    tiny.model().weights().embedding.UnpackRow(document.tokens[r], row.data());
    EXPECT_NEAR(s.energy[r], std::inner_product(row.begin(), row.end(), row.begin(), 0.0), 1e-3);
  }
}

TEST(ModelProbeTest, AdapterHasItsSay) {
  TinyPair tiny(0.5f);
  auto base = ModelProbe::Create(tiny.pair().producer, 80, tiny.executor());
  auto tuned = ModelProbe::Create(tiny.pair().consumer, 80, tiny.executor());
  ASSERT_TRUE(base.ok() && tuned.ok());
  const Document document = RandomDocuments(1, 64, 7).documents[0];
  (*base)->Start(document.tokens);
  (*tuned)->Start(document.tokens);
  const LayerStates& a = (*base)->RunLayer(0);
  const LayerStates& b = (*tuned)->RunLayer(0);
  EXPECT_EQ(a.hidden, b.hidden);
  EXPECT_NE(a.kv, b.kv);
  EXPECT_NE((*base)->RunLayer(1).hidden, (*tuned)->RunLayer(1).hidden);
}

}  // namespace
}  // namespace baton
