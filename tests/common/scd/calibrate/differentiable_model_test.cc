#include "common/scd/calibrate/differentiable_model.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "common/model/single_sequence.h"
#include "common/weights/lora.h"
#include "common/weights/model_source.h"
#include "gtest/gtest.h"
#include "tests/support/test_data.h"

namespace baton {
namespace {

constexpr std::int32_t kPrefix = 40;
constexpr std::int32_t kTokens = 60;

class DifferentiableModelTest : public ::testing::Test {
 protected:
  void Load(const std::string& folder, const std::string& adapter = "") {
    const auto source = ModelSource::Open(TestDataDir() + "/" + folder);
    ASSERT_TRUE(source.ok()) << source.status();
    auto model = Model::Load(**source, {.executor = &executor_});
    ASSERT_TRUE(model.ok()) << model.status();
    of_.model = *std::move(model);
    if (!adapter.empty()) {
      const auto lora = LoadLoraAdapter(TestDataDir() + "/" + adapter, "a", of_.model->config());
      ASSERT_TRUE(lora.ok()) << lora.status();
      adapters_ = std::make_unique<AdapterSet>(of_.model);
      of_.adapter = *adapters_->Add(*lora, executor_);
      of_.adapters = adapters_.get();
    }
    const auto vocab = static_cast<std::int32_t>(of_.model->config().vocab);
    for (std::int32_t i = 0; i < kTokens; ++i) tokens_.push_back((i * 7 + i / 5) % vocab);
  }

  // The model's own [K | V] of the prefix, one tensor a layer.
  std::vector<at::Tensor> OwnPast() {
    auto probe = ModelProbe::Create(of_, kPrefix, executor_);
    EXPECT_TRUE(probe.ok()) << probe.status();
    (*probe)->Start(absl::MakeConstSpan(tokens_).first(kPrefix));
    std::vector<at::Tensor> past;
    for (int layer = 0; layer < static_cast<int>(of_.model->config().layers); ++layer) {
      const LayerStates& states = (*probe)->RunLayer(layer);
      past.push_back(at::tensor(at::ArrayRef<float>(states.kv), at::kFloat).reshape({kPrefix, -1}));
    }
    return past;
  }

  // K/V of the prefix's inputs, at unit RMS already: eps counts twice, a part of 5e-6.
  void ExpectItsKv() {
    const DifferentiableModel model(of_);
    auto probe = ModelProbe::Create(of_, kPrefix, executor_);
    ASSERT_TRUE(probe.ok()) << probe.status();
    (*probe)->Start(absl::MakeConstSpan(tokens_).first(kPrefix));
    for (int layer = 0; layer < static_cast<int>(of_.model->config().layers); ++layer) {
      const LayerStates& states = (*probe)->RunLayer(layer);
      const at::Tensor inputs =
          at::tensor(at::ArrayRef<float>(states.hidden), at::kFloat).reshape({kPrefix, -1});
      const at::Tensor kv = model.KvOf(static_cast<std::size_t>(layer), 3 * inputs).contiguous();
      ASSERT_EQ(kv.numel(), static_cast<std::int64_t>(states.kv.size()));
      for (std::int64_t i = 0; i < kv.numel(); ++i) {
        ASSERT_NEAR(kv.data_ptr<float>()[i], states.kv[static_cast<std::size_t>(i)], 1e-4f) << i;
      }
    }
  }

  absl::Span<const std::int32_t> Rest() const {
    return absl::MakeConstSpan(tokens_).subspan(kPrefix);
  }

  void ExpectTheForwardPasss() {
    auto sequence = SingleSequence::Create(of_.model->config(), DType::kF32, kTokens);
    ASSERT_TRUE(sequence.ok()) << sequence.status();
    ForwardPass pass(of_.model, of_.adapters, executor_);
    std::vector<std::int32_t> positions(kTokens), rows(kTokens - kPrefix);
    std::iota(positions.begin(), positions.end(), 0);
    std::iota(rows.begin(), rows.end(), kPrefix);
    const SequenceSlice slice{0, kTokens, &(*sequence)->view(), of_.adapter};
    float* h = pass.Embed(tokens_);
    pass.RunLayers(0, static_cast<int>(of_.model->config().layers), h,
                   {.positions = positions, .sequences = {&slice, 1}}, nullptr);
    const float* want = pass.Logits(h, rows);
    const at::Tensor got = DifferentiableModel(of_).Logits(Rest(), OwnPast());
    ASSERT_EQ(got.numel(), static_cast<std::int64_t>(rows.size()) * of_.model->config().vocab);
    float largest = 0;
    for (std::int64_t i = 0; i < got.numel(); ++i) largest = std::max(largest, std::abs(want[i]));
    for (std::int64_t i = 0; i < got.numel(); ++i) {
      // fp32 sums in another order, through a few layers.
      ASSERT_NEAR(got.data_ptr<float>()[i], want[i], 1e-4f * std::max(1.0f, largest)) << i;
    }
  }

  SerialExecutor executor_;
  ProbedModel of_;
  std::unique_ptr<AdapterSet> adapters_;
  std::vector<std::int32_t> tokens_;
};

TEST_F(DifferentiableModelTest, LlamaIsTheForwardPasss) {
  Load("tiny_llama");
  ExpectTheForwardPasss();
  ExpectItsKv();
}
TEST_F(DifferentiableModelTest, AnAdapterIsMergedIn) {
  Load("tiny_llama", "tiny_llama_lora_all");
  ExpectTheForwardPasss();
  ExpectItsKv();
}
TEST_F(DifferentiableModelTest, BiasesAreAdded) {
  Load("tiny_qwen2");
  ExpectTheForwardPasss();
  ExpectItsKv();
}
TEST_F(DifferentiableModelTest, HeadsAreNormalised) {
  Load("tiny_qwen3");
  ExpectTheForwardPasss();
  ExpectItsKv();
}
TEST_F(DifferentiableModelTest, WindowsAreKept) {
  Load("tiny_mistral");
  ExpectTheForwardPasss();
  ExpectItsKv();
}

// Against differences of the logits themselves.
TEST_F(DifferentiableModelTest, GradientsReachThePast) {
  Load("tiny_llama");
  const DifferentiableModel model(of_);
  std::vector<at::Tensor> past = OwnPast();
  for (at::Tensor& layer : past) layer.set_requires_grad(true);
  const at::Tensor weights =
      at::sin(at::arange(of_.model->config().vocab, at::kFloat));  // some direction
  const auto value = [&](const std::vector<at::Tensor>& of) {
    return (model.Logits(Rest(), of) * weights).sum();
  };
  value(past).backward();
  const at::NoGradGuard no_grad;
  for (std::size_t layer = 0; layer < past.size(); ++layer) {
    const at::Tensor step = past[layer].grad() / past[layer].grad().norm() * 1e-2;
    std::vector<at::Tensor> ahead, behind;
    for (const at::Tensor& t : past) {
      ahead.push_back(t.detach().clone());
      behind.push_back(t.detach().clone());
    }
    ahead[layer] += step;
    behind[layer] -= step;
    const double slope =
        (value(ahead) - value(behind)).item<double>() / (2 * step.norm().item<double>());
    const double expected = past[layer].grad().norm().item<double>();
    EXPECT_NEAR(slope, expected, 0.02 * expected) << "layer " << layer;
  }
}

}  // namespace
}  // namespace baton
