// Weights as their file stores them, and quantised at load.
#include "common/model/weight_dtype.h"

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "common/base/ids.h"
#include "common/model/model_weights.h"
#include "common/weights/lora.h"
#include "tests/common/model/model_fixture.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_model.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

TEST(WeightDTypeTest, NamesAndFormats) {
  for (const auto& [name, dtype] : WeightDTypeNames()) EXPECT_EQ(WeightDTypeName(dtype), name);
  EXPECT_EQ(FormatFor(WeightDType::kInt4, StoredDType::kF32, false), WeightFormat::kQ4_1);
  EXPECT_EQ(FormatFor(WeightDType::kInt4, StoredDType::kF32, true), WeightFormat::kQ8_0);
  EXPECT_EQ(FormatFor(WeightDType::kInt8, StoredDType::kQ4_K, false), WeightFormat::kQ8_0);
  EXPECT_EQ(FormatFor(WeightDType::kBF16, StoredDType::kQ8_0, true), WeightFormat::kBF16);
  for (int i = 0; i <= static_cast<int>(StoredDType::kQ6_K); ++i) {
    const auto stored = static_cast<StoredDType>(i);
    const WeightFormat format = FormatFor(WeightDType::kFile, stored, false);
    EXPECT_EQ(StoredBlockBytes(format), DTypeBlockBytes(stored)) << DTypeName(stored);
    EXPECT_EQ(StoredBlockElements(format), DTypeBlockElements(stored)) << DTypeName(stored);
  }
}

class AsStored : public ::testing::Test {
 protected:
  // Hidden states of a prompt in one chunk and of tokens one by one, and the last logits.
  std::vector<float> Run(const std::shared_ptr<const Model>& model,
                         AdapterSet* adapters = nullptr) {
    ForwardPass pass(model, adapters, *executor_);
    const auto sequence = NewSequence(*model, 40);
    const int adapter = adapters == nullptr ? kNoAdapter : 0;
    auto out = RunHidden(pass, *model, sequence->view(), Iota(32, 5), 0, 1 << 30, adapter);
    const auto decoded = RunHidden(pass, *model, sequence->view(), Iota(8, 60), 32, 1, adapter);
    out.insert(out.end(), decoded.begin(), decoded.end());
    const std::int32_t last = 0;
    const float* logits = pass.Logits(decoded.data() + 7 * model->config().hidden, {&last, 1});
    out.insert(out.end(), logits, logits + model->config().vocab);
    return out;
  }

  void ExpectSameAsFp32(const std::string& path) {
    const auto full = LoadModel(path, *executor_);
    const auto file = LoadModel(path, *executor_, WeightDType::kFile);
    EXPECT_EQ(Run(file), Run(full));
    EXPECT_EQ(file->served_digest(), full->served_digest());
    std::printf("%s: %.2f MiB as stored, %.2f MiB as fp32\n", path.c_str(),
                static_cast<double>(file->weight_bytes()) / (1 << 20),
                static_cast<double>(full->weight_bytes()) / (1 << 20));
    EXPECT_LE(static_cast<double>(file->weight_bytes()),
              1.3 * static_cast<double>(fs::file_size(path)));
  }

  std::unique_ptr<Executor> executor_ = MakeThreadPool(2);
};

// Q, K and V of three types in one matrix, as files made by llama.cpp have them.
TEST_F(AsStored, KQuantsGiveTheBitsOfTheirDequantisedCopy) {
  ExpectSameAsFp32(ModelTestData("tiny_kquant/model.gguf"));
}

TEST_F(AsStored, SmolLm2GivesTheBitsOfItsDequantisedCopy) {
  const std::string path = SmolLm2GgufPath();
  BATON_SKIP_WITHOUT(path);
  ExpectSameAsFp32(path);
}

TEST_F(AsStored, AdaptersGiveTheSameBits) {
  const std::string path = SmolLm2GgufPath();
  BATON_SKIP_WITHOUT(path);
  std::vector<float> out[2];
  for (const WeightDType dtype : {WeightDType::kF32, WeightDType::kFile}) {
    const auto model = LoadModel(path, *executor_, dtype);
    const auto adapter = LoadLoraAdapter(ModelTestData("smollm2_lora_all"), "all", model->config());
    ASSERT_TRUE(adapter.ok()) << adapter.status();
    AdapterSet set(model);
    ASSERT_TRUE(set.Add(*adapter, *executor_).ok());
    out[dtype == WeightDType::kF32 ? 0 : 1] = Run(model, &set);
    EXPECT_NE(out[0], Run(model));
  }
  EXPECT_EQ(out[0], out[1]);
}

TEST_F(AsStored, ProgressEndsAtTheWhole) {
  for (const auto& [name, dtype] : WeightDTypeNames()) {
    const auto source = ModelSource::Open(ModelTestData("tiny_kquant/model.gguf"));
    ASSERT_TRUE(source.ok()) << source.status();
    std::int64_t last = 0, whole = 0;
    const auto progress = [&](std::int64_t done, std::int64_t total) {
      last = done;
      whole = total;
    };
    const auto model = Model::Load(
        **source, {.weight_dtype = dtype, .executor = executor_.get(), .progress = progress});
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_EQ(last, whole) << name;
    EXPECT_EQ(static_cast<std::size_t>(whole), (*model)->weight_bytes()) << name;
  }
}

// Weights quantised at load: each matrix within the bounds of quantize.h, logits within what
// independent errors of that size in every matrix add up to.
class Quantised : public AsStored {
 protected:
  Quantised() : dir_(fs::temp_directory_path() / ("baton_quant_" + HexId(RandomId64()))) {
    WriteTinyLlama(dir_);
  }
  ~Quantised() override { fs::remove_all(dir_); }

  // max over rows of |difference| / bound, and rms(difference) / rms(full).
  static std::pair<double, double> Compare(const PackedMatrix& full, const PackedMatrix& small,
                                           const std::function<float(float, float)>& bound) {
    const auto cols = static_cast<std::size_t>(full.cols());
    std::vector<float> a(cols), b(cols);
    double worst = 0, square = 0, error = 0;
    for (std::int64_t r = 0; r < full.rows(); ++r) {
      full.UnpackRow(r, a.data());
      small.UnpackRow(r, b.data());
      for (std::size_t k = 0; k < cols; ++k) {
        const std::size_t begin = k / 32 * 32, end = std::min(cols, begin + 32);
        const auto [min, max] = std::minmax_element(a.begin() + static_cast<std::ptrdiff_t>(begin),
                                                    a.begin() + static_cast<std::ptrdiff_t>(end));
        worst = std::max(worst, double{std::fabs(b[k] - a[k])} / bound(*min, *max));
        square += double{a[k]} * a[k];
        error += double{b[k] - a[k]} * (b[k] - a[k]);
      }
    }
    return {worst, std::sqrt(error / square)};
  }

  void ExpectNear(WeightDType dtype, const std::function<float(float, float)>& bound,
                  std::size_t most_bytes) {
    const auto full = LoadModel(dir_, *executor_);
    const auto small = LoadModel(dir_, *executor_, dtype);
    EXPECT_LE(small->weight_bytes(), most_bytes);
    EXPECT_NE(small->served_digest(), full->served_digest());
    double noise = 0;  // variance, relative, summed over the matrices a hidden state passes
    const auto add = [&](const PackedMatrix& a, const PackedMatrix& b) {
      const auto [worst, rms] = Compare(a, b, bound);
      EXPECT_LE(worst, 1.0);
      noise += rms * rms;
    };
    for (std::size_t i = 0; i < full->weights().layers.size(); ++i) {
      const LayerWeights &a = full->weights().layers[i], &b = small->weights().layers[i];
      add(a.qkv, b.qkv);
      add(a.o, b.o);
      add(a.gate_up, b.gate_up);
      add(a.down, b.down);
    }
    add(full->weights().embedding, small->weights().embedding);
    add(full->weights().head, small->weights().head);
    const auto want = Run(full), got = Run(small);
    const std::size_t vocab = static_cast<std::size_t>(full->config().vocab);
    double square = 0, error = 0;
    for (std::size_t i = want.size() - vocab; i < want.size(); ++i) {
      square += double{want[i]} * want[i];
      error += double{got[i] - want[i]} * (got[i] - want[i]);
    }
    const double relative = std::sqrt(error / square);
    std::printf("%s: logits off by %.4f of their rms; the sum of the matrices' errors is %.4f\n",
                WeightDTypeName(dtype), relative, std::sqrt(noise));
    // Twice: products of two noisy factors (gate and up, q and k) count both.
    EXPECT_LE(relative, 2 * std::sqrt(noise));
    EXPECT_GT(relative, 0);
  }

  const fs::path dir_;
};

constexpr float kHalfUlp = 0x1p-11f;  // of fp16, relative

TEST_F(Quantised, Int8) {
  const auto full = LoadModel(dir_, *executor_)->weight_bytes();
  ExpectNear(
      WeightDType::kInt8,
      [](float min, float max) {
        const float d = std::max(std::fabs(min), std::fabs(max)) / 127;
        return 1.01f * d * (0.5f + 127 * kHalfUlp);
      },
      full * 28 / 100);
}

TEST_F(Quantised, Int4) {
  const auto full = LoadModel(dir_, *executor_)->weight_bytes();
  ExpectNear(
      WeightDType::kInt4,
      [](float min, float max) {
        const float d = (max - min) / 15;
        return 1.01f * (d * (0.5f + 15 * kHalfUlp) + std::fabs(min) * kHalfUlp);
      },
      full * 24 / 100);
}

}  // namespace
}  // namespace baton
