// SmolLM2-135M-Instruct (Q4_1 GGUF) against Hugging Face Transformers on the same weights.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "common/model/model.h"
#include "common/weights/lora.h"
#include "kernels/elementwise.h"
#include "tests/common/model/model_fixture.h"
#include "tests/support/test_data.h"

namespace baton {
namespace {

class SmolLm2 : public ::testing::Test {
 protected:
  void SetUp() override {
    path_ = SmolLm2GgufPath();
    BATON_SKIP_WITHOUT(path_);
  }

  // Final hidden states of the reference text; 512 tokens per chunk, as a server would.
  std::vector<float> RunText(WeightDType weights, DType pages, CaptureHook* hook = nullptr) {
    model_ = LoadModel(path_, *executor_, weights);
    pass_ = std::make_unique<ForwardPass>(model_, nullptr, *executor_);
    const auto tokens = ref_.I32("tokens");
    const auto sequence = NewSequence(*model_, static_cast<std::int32_t>(tokens.size()), pages);
    return RunHidden(*pass_, *model_, sequence->view(), tokens, 0, 512, kNoAdapter, hook);
  }

  // The sub-sampled logits of the reference.
  std::vector<float> SampledLogits(const std::vector<float>& hidden) {
    return SampledLogits(hidden, ref_.I32("rows"));
  }
  std::vector<float> SampledLogits(const std::vector<float>& hidden,
                                   const std::vector<std::int32_t>& rows) {
    const auto columns = ref_.I32("columns");
    const auto logits = LogitsOf(*pass_, *model_, hidden, rows);
    std::vector<float> out;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (std::int32_t c : columns) out.push_back(logits[i * model_->config().vocab + c]);
    }
    return out;
  }

  std::string path_;
  std::unique_ptr<Executor> executor_ = MakeThreadPool(2);
  Reference ref_{"smollm2_135m"};
  std::shared_ptr<const Model> model_;
  std::unique_ptr<ForwardPass> pass_;
};

TEST_F(SmolLm2, Fp32AgreesWithTransformersOver1024Tokens) {
  const std::vector<int> layers = {0, 15, 29};
  KeepCapture kept(30, 576, 192);
  const auto hidden = RunText(WeightDType::kF32, DType::kF32, &kept);
  const double tolerance = std::max(1e-4, 2 * ref_.Scalar("eager_vs_sdpa").get<double>());
  const double logits = MaxAbsDiff(SampledLogits(hidden), ref_.F32("logits"));
  EXPECT_LE(logits, tolerance);

  const auto want_lse = ref_.F32("logsumexp"), gap = ref_.F32("argmax_gap");
  const auto want_argmax = ref_.I32("argmax");
  const std::int64_t vocab = model_->config().vocab;
  double lse = 0;
  for (std::int32_t begin = 0; begin < 1024; begin += 64) {
    const float* rows = pass_->Logits(hidden.data(), Iota(64, begin));
    for (int r = 0; r < 64; ++r) {
      const float* row = rows + r * vocab;
      lse = std::max(lse, std::abs(double{LogSumExp(row, vocab)} - want_lse[begin + r]));
      if (gap[begin + r] > 1e-4) {
        EXPECT_EQ(std::max_element(row, row + vocab) - row, want_argmax[begin + r]);
      }
    }
  }
  EXPECT_LE(lse, tolerance);

  auto targets = ref_.I32("tokens");
  targets.erase(targets.begin());
  const double surprisal =
      MaxAbsDiff(pass_->Surprisal(hidden.data(), targets), ref_.F32("surprisal"));
  EXPECT_LE(surprisal, 2 * tolerance);  // a difference of two logit-sized numbers

  double k = 0, v = 0, h_in = 0;
  const auto rows = ref_.I32("rows");
  for (int layer : layers) {
    const std::string i = "." + std::to_string(layer);
    k = std::max(k, MaxAbsDiff(TakeRows(kept.k[layer], 192, rows), ref_.F32("k_pre_rope" + i)));
    v = std::max(v, MaxAbsDiff(TakeRows(kept.v[layer], 192, rows), ref_.F32("v" + i)));
    h_in = std::max(h_in, MaxAbsDiff(TakeRows(kept.h_in[layer], 576, rows), ref_.F32("h_in" + i)));
  }
  EXPECT_LE(k, 1e-3);
  EXPECT_LE(v, 1e-3);
  EXPECT_LE(h_in, 1e-3);
  std::printf(
      "max |diff| against HF: logits %.2e (tolerance %.2e), log-sum-exp %.2e, "
      "surprisal %.2e, K %.2e, V %.2e, H_in %.2e\n",
      logits, tolerance, lse, surprisal, k, v, h_in);
}

TEST_F(SmolLm2, GreedyTokensAgreeWithTransformers) {
  model_ = LoadModel(path_, *executor_);
  pass_ = std::make_unique<ForwardPass>(model_, nullptr, *executor_);
  std::vector<std::vector<std::int32_t>> prompts;
  for (std::size_t p = 0; p < ref_.Scalar("prompts").size(); ++p) {
    prompts.push_back(ref_.I32("prompt." + std::to_string(p)));
  }
  const auto got = Greedy(*pass_, *model_, prompts, 64);
  for (std::size_t p = 0; p < prompts.size(); ++p) {
    const auto want = ref_.I32("greedy." + std::to_string(p));
    const auto gaps = ref_.F32("greedy_gap." + std::to_string(p));
    ASSERT_EQ(want.size(), 64u);
    for (std::size_t t = 0; t < want.size(); ++t) {
      if (got[p][t] == want[t]) continue;
      ASSERT_LE(gaps[t], 1e-4) << "prompt " << p << " token " << t;
      std::printf("prompt %zu: tie at token %zu (gap %.1e)\n", p, t, gaps[t]);
      break;
    }
  }
}

// An adapter trained on the Hugging Face weights fits the GGUF's un-permuted Q and K.
TEST_F(SmolLm2, AdapterOfTheHuggingFaceModelFitsTheGguf) {
  model_ = LoadModel(path_, *executor_);
  const auto adapter = LoadLoraAdapter(ModelTestData("smollm2_lora_qk"), "qk", model_->config());
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  AdapterSet set(model_);
  ASSERT_TRUE(set.Add(*adapter, *executor_).ok());
  pass_ = std::make_unique<ForwardPass>(model_, &set, *executor_);
  auto tokens = ref_.I32("tokens");
  tokens.resize(64);
  const auto sequence = NewSequence(*model_, 64);
  const auto hidden = RunHidden(*pass_, *model_, sequence->view(), tokens, 0, 64, 0);
  const auto want = ref_.F32("lora_qk/logits");
  const double tolerance = std::max(1e-4, 2 * ref_.Scalar("eager_vs_sdpa").get<double>());
  const double diff = MaxAbsDiff(SampledLogits(hidden, {31, 63}), want);
  std::printf("max |diff| against HF + PEFT: %.2e\n", diff);
  EXPECT_LE(diff, tolerance);
  const auto plain = ref_.F32("logits");
  EXPECT_GT(MaxAbsDiff({plain.begin(), plain.begin() + 256}, want), 0.1) << "adapter had no effect";
}

// All seven kinds of linear layers, with the permuted Q and K rows among them: PEFT on the Hugging
// Face form and the adapter on the GGUF file say the same, now and 64 tokens on.
TEST_F(SmolLm2, AnAdapterOnEveryLinearLayerFitsTheGguf) {
  const Reference ref("smollm2_lora");
  model_ = LoadModel(path_, *executor_);
  const auto adapter = LoadLoraAdapter(ModelTestData("smollm2_lora_all"), "all", model_->config());
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_EQ(adapter->layers[1].size(), 7u);
  AdapterSet set(model_);
  ASSERT_TRUE(set.Add(*adapter, *executor_).ok());
  pass_ = std::make_unique<ForwardPass>(model_, &set, *executor_);
  const auto tokens = ref.I32("tokens"), rows = ref.I32("rows"), columns = ref.I32("columns");
  const double tolerance = std::max(1e-4, 2 * ref.Scalar("eager_vs_sdpa").get<double>());
  const std::int64_t vocab = model_->config().vocab;
  const auto sampled = [&](int which) {
    const auto sequence = NewSequence(*model_, static_cast<std::int32_t>(tokens.size()));
    const auto logits =
        LogitsOf(*pass_, *model_,
                 RunHidden(*pass_, *model_, sequence->view(), tokens, 0, 1 << 30, which), rows);
    std::vector<float> out;
    for (std::size_t i = 0; i < rows.size(); ++i) {
      for (const std::int32_t c : columns) out.push_back(logits[i * vocab + c]);
    }
    return out;
  };
  const double diff = MaxAbsDiff(sampled(0), ref.F32("lora_all/logits"));
  std::printf("max |diff| against HF + PEFT: %.2e (tolerance %.2e)\n", diff, tolerance);
  EXPECT_LE(diff, tolerance);
  EXPECT_LE(MaxAbsDiff(sampled(kNoAdapter), ref.F32("base/logits")), tolerance);
  EXPECT_GT(MaxAbsDiff(ref.F32("base/logits"), ref.F32("lora_all/logits")), 0.1);

  const auto want = ref.I32("lora_all/greedy");
  const auto gaps = ref.F32("lora_all/greedy_gap");
  const auto got = Greedy(*pass_, *model_, {tokens}, 64, 0)[0];
  for (std::size_t t = 0; t < want.size(); ++t) {
    if (got[t] == want[t]) continue;
    ASSERT_LE(gaps[t], 1e-4) << "token " << t;
    std::printf("a tie at token %zu\n", t);
    break;
  }
}

// Weights and pages in bf16 lose no more than HF's own bf16 run does.
TEST_F(SmolLm2, Bf16StaysWithinTheErrorOfTransformersBf16) {
  const double allowed = ref_.Scalar("hf_bf16_rms_error_sampled");
  const auto hidden = RunText(WeightDType::kBF16, DType::kBF16);
  const double rms = RmsDiff(SampledLogits(hidden), ref_.F32("logits"));
  std::printf("bf16 rms error against HF fp32: %.4f (HF bf16: %.4f)\n", rms, allowed);
  EXPECT_LE(rms, allowed);
}

}  // namespace
}  // namespace baton
