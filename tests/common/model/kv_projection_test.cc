#include "common/model/kv_projection.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

#include "common/model/single_sequence.h"
#include "common/weights/lora.h"
#include "gtest/gtest.h"
#include "tests/common/model/model_fixture.h"

namespace baton {
namespace {

// The forward pass's own inputs and what it made of them.
class Watch final : public CaptureHook {
 public:
  bool WantsInput(int) const override { return true; }
  void OnKv(const LayerCapture& c) override { seen(c); }
  std::function<void(const LayerCapture&)> seen;
};

// Inputs that a hook gets are at unit RMS already, so eps counts twice: a part of eps / 2 = 5e-6,
// and roundings of sums of 64 products beside it, of values below 8.
constexpr float kTolerance = 1e-4f;

void ExpectTheForwardPasss(const std::shared_ptr<const Model>& model,
                           const std::shared_ptr<const AdapterSet>& adapters, int adapter) {
  SerialExecutor executor;
  const ModelConfig& c = model->config();
  constexpr std::int32_t kRows = 20;
  std::vector<std::int32_t> tokens(kRows), positions(kRows);
  for (std::int32_t i = 0; i < kRows; ++i) tokens[static_cast<std::size_t>(i)] = 7 + i * 11 % 90;
  std::iota(positions.begin(), positions.end(), 0);
  const KvProjection projection(model, adapters, adapter, executor);
  const std::int64_t kv_dim = c.kv_heads * c.head_dim;
  int layers = 0;
  Watch watch;
  watch.seen = [&](const LayerCapture& capture) {
    ++layers;
    // Their scale is of no matter.
    std::vector<float> inputs(capture.h_in, capture.h_in + kRows * c.hidden);
    for (float& x : inputs) x *= 3;
    std::vector<float> kv(static_cast<std::size_t>(kRows * 2 * kv_dim));
    projection.Project(capture.layer, inputs.data(), kRows, kv.data(), executor);
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t i = 0; i < kv_dim; ++i) {
        const float* got = kv.data() + r * 2 * kv_dim;
        ASSERT_NEAR(got[i], capture.k_pre_rope[r * capture.ld_kv + i], kTolerance) << r;
        ASSERT_NEAR(got[kv_dim + i], capture.v[r * capture.ld_kv + i], kTolerance) << r;
      }
    }
    // Rows by themselves have the same bits.
    std::vector<float> alone(static_cast<std::size_t>(2 * kv_dim));
    projection.Project(capture.layer, inputs.data() + 5 * c.hidden, 1, alone.data(), executor);
    EXPECT_TRUE(std::equal(alone.begin(), alone.end(), kv.begin() + 5 * 2 * kv_dim));
  };
  auto sequence = SingleSequence::Create(c, DType::kF32, kRows);
  ASSERT_TRUE(sequence.ok());
  ForwardPass pass(model, adapters.get(), executor);
  const SequenceSlice slice{0, kRows, &(*sequence)->view(), adapter};
  pass.RunLayers(0, static_cast<int>(c.layers), pass.Embed(tokens),
                 {.positions = positions, .sequences = {&slice, 1}}, &watch);
  EXPECT_EQ(layers, c.layers);
}

// Biases, k-norms, and query rows that end within a panel (which are copied).
TEST(KvProjectionTest, GivesWhatTheForwardPassMakes) {
  SerialExecutor executor;
  for (const char* folder : {"tiny_llama", "tiny_llama_bias", "tiny_qwen2", "tiny_qwen3"}) {
    SCOPED_TRACE(folder);
    ExpectTheForwardPasss(LoadModel(ModelTestData(folder), executor), nullptr, kNoAdapter);
  }
}

TEST(KvProjectionTest, QuantisedWeightsAreTheModelsOwn) {
  SerialExecutor executor;
  for (const WeightDType dtype : {WeightDType::kBF16, WeightDType::kInt8}) {
    ExpectTheForwardPasss(LoadModel(ModelTestData("tiny_llama"), executor, dtype), nullptr,
                          kNoAdapter);
  }
}

TEST(KvProjectionTest, AnAdapterIsApplied) {
  SerialExecutor executor;
  const auto model = LoadModel(ModelTestData("tiny_llama"), executor);
  const ModelConfig& c = model->config();
  std::mt19937 random(3);
  std::normal_distribution<float> normal;
  const auto module = [&](std::int64_t out) {
    LoraModule m{.rank = 2, .in = c.hidden, .out = out, .a = {}, .b = {}, .scale = 0.5f};
    for (std::int64_t i = 0; i < 2 * c.hidden; ++i) m.a.push_back(normal(random) / 8);
    for (std::int64_t i = 0; i < 2 * out; ++i) m.b.push_back(normal(random));
    return m;
  };
  const auto adapters = std::make_shared<AdapterSet>(model);
  for (const bool queries_only : {true, false}) {
    LoraAdapter adapter{.name = "random", .digest = "a", .max_rank = 2, .layers = {}};
    for (std::int64_t l = 0; l < c.layers; ++l) {
      LoraLayer layer = {{"q_proj", module(c.heads * c.head_dim)}};
      if (!queries_only) {
        layer.emplace("k_proj", module(c.kv_heads * c.head_dim));
        layer.emplace("v_proj", module(c.kv_heads * c.head_dim));
      }
      adapter.layers.push_back(std::move(layer));
    }
    const auto index = adapters->Add(adapter, executor);
    ASSERT_TRUE(index.ok()) << index.status();
    ExpectTheForwardPasss(model, adapters, *index);
  }
}

}  // namespace
}  // namespace baton
