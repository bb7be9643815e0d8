// Every family and its variants on tiny random models, over 200 tokens: many sliding windows, and
// well past the original context of the scaled RoPEs. Against Hugging Face Transformers, against
// the same model as a GGUF file, and against itself in other chunks and batches.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <ostream>
#include <set>
#include <string>
#include <vector>

#include "common/model/model.h"
#include "common/weights/model_config.h"
#include "gmock/gmock.h"
#include "tests/common/model/model_fixture.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

struct Variant {
  const char* name;    // in families.json
  const char* folder;  // of the weights
  const char* config;  // the file that takes the place of config.json
  const char* gguf;    // the same model as GGUF, or null
  std::int64_t windowed_layers;
};

// For readable test names.
void PrintTo(const Variant& v, std::ostream* out) { *out << v.name; }

constexpr Variant kVariants[] = {
    {"tiny_llama.linear", "tiny_llama", "config.linear.json", nullptr, 0},
    {"tiny_llama.llama3", "tiny_llama", "config.llama3.json", nullptr, 0},
    {"tiny_llama.yarn", "tiny_llama", "config.yarn.json", nullptr, 0},
    {"tiny_llama_bias", "tiny_llama_bias", "config.json", "tiny_llama_bias/model.gguf", 0},
    {"tiny_mistral", "tiny_mistral", "config.json", "tiny_mistral/model.gguf", 2},
    {"tiny_qwen2", "tiny_qwen2", "config.json", nullptr, 0},
    {"tiny_qwen2.window", "tiny_qwen2", "config.window.json", "tiny_qwen2/window.gguf", 1},
    {"tiny_qwen3", "tiny_qwen3", "config.json", nullptr, 0},
    {"tiny_qwen3.window", "tiny_qwen3", "config.window.json", "tiny_qwen3/window.gguf", 1},
};

// The variant's weights beside its config, as a folder of its own.
class VariantFolder {
 public:
  VariantFolder(const std::string& folder, const std::string& config)
      : path_(fs::path(::testing::TempDir()) / ("baton_family_" + std::to_string(::getpid()))) {
    fs::remove_all(path_);
    fs::create_directories(path_);
    fs::copy(ModelTestData(folder + "/model.safetensors"), path_);
    fs::copy(ModelTestData(folder + "/" + config), path_ / "config.json");
  }
  ~VariantFolder() { fs::remove_all(path_); }
  std::string path() const { return path_.string(); }

 private:
  fs::path path_;
};

class Family : public ::testing::TestWithParam<Variant> {
 protected:
  std::vector<float> Whole(const std::shared_ptr<const Model>& model) {
    ForwardPass pass(model, nullptr, executor_);
    const auto sequence = NewSequence(*model, Length());
    return RunHidden(pass, *model, sequence->view(), tokens_);
  }
  std::int32_t Length() const { return static_cast<std::int32_t>(tokens_.size()); }
  static std::vector<std::int32_t> SampledRows() {
    std::vector<std::int32_t> rows;
    for (std::int32_t r = 7; r < 200; r += 16) rows.push_back(r);
    return rows;
  }

  SerialExecutor executor_;
  Reference ref_{"families"};
  std::vector<std::int32_t> tokens_ = ref_.I32("tokens");
  std::string prefix_ = std::string(GetParam().name) + "/";
  VariantFolder folder_{GetParam().folder, GetParam().config};
  std::shared_ptr<const Model> model_ = LoadModel(folder_.path(), executor_);
  ForwardPass pass_{model_, nullptr, executor_};
};

// Tolerance in fp32: twice what Transformers' own two attention paths differ by, at least 1e-4.
TEST_P(Family, LogitsAgreeWithTransformers) {
  const auto logits = LogitsOf(pass_, *model_, Whole(model_), SampledRows());
  const double tolerance = std::max(1e-4, 2 * ref_.Scalar(prefix_ + "eager_vs_sdpa").get<double>());
  const double diff = MaxAbsDiff(logits, ref_.F32(prefix_ + "logits"));
  std::printf("%s: max |diff| %.1e\n", GetParam().name, diff);
  EXPECT_LE(diff, tolerance);
}

TEST_P(Family, SixtyFourGreedyTokensAgreeWithTransformers) {
  const auto want = ref_.I32(prefix_ + "greedy");
  const auto gaps = ref_.F32(prefix_ + "greedy_gap");
  ASSERT_EQ(want.size(), 64u);
  const auto got = Greedy(pass_, *model_, {tokens_}, 64)[0];
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (got[i] == want[i]) continue;
    ASSERT_LE(gaps[i], 1e-4) << "at token " << i;
    std::printf("%s: a tie at token %zu\n", GetParam().name, i);
    break;  // what follows a tie may differ
  }
}

TEST_P(Family, ThePlanIsAsTheFilesSay) {
  std::int64_t windowed = 0;
  for (std::int64_t layer = 0; layer < model_->config().layers; ++layer) {
    windowed += model_->config().WindowOf(layer) == 16 ? 1 : 0;
  }
  EXPECT_EQ(windowed, GetParam().windowed_layers);
  EXPECT_EQ(model_->config().sliding_window.has_value(), windowed > 0);
  EXPECT_THAT(model_->config().warnings, ::testing::IsEmpty());
}

// Batch invariance, with the window's edge inside pages, between them and between chunks.
TEST_P(Family, ChunksDecodeBatchAndThreadsGiveTheSameBits) {
  const auto want = Whole(model_);
  const auto pool = MakeThreadPool(2);
  ForwardPass threaded(model_, nullptr, *pool);
  for (const std::int64_t chunk : {1, 15, 16, 17, 64, 199}) {
    const auto sequence = NewSequence(*model_, Length());
    EXPECT_EQ(RunHidden(threaded, *model_, sequence->view(), tokens_, 0, chunk), want) << chunk;
  }
  // Between a short and a longer sequence.
  const std::int64_t d = model_->config().hidden;
  const std::vector<std::vector<std::int32_t>> all = {
      {9, 8, 7}, tokens_, std::vector<std::int32_t>(231, 17)};
  std::vector<std::int32_t> ids, positions;
  std::vector<std::unique_ptr<SingleSequence>> sequences;
  std::vector<SequenceSlice> slices;
  for (const auto& one : all) {
    const auto begin = static_cast<std::int32_t>(ids.size());
    const auto n = static_cast<std::int32_t>(one.size());
    ids.insert(ids.end(), one.begin(), one.end());
    for (const std::int32_t p : Iota(n)) positions.push_back(p);
    sequences.push_back(NewSequence(*model_, n));
    slices.push_back({begin, begin + n, &sequences.back()->view(), kNoAdapter});
  }
  float* h = threaded.Embed(ids);
  threaded.RunLayers(0, static_cast<int>(model_->config().layers), h,
                     {.positions = positions, .sequences = slices}, nullptr);
  EXPECT_EQ(std::vector<float>(h + 3 * d, h + (3 + Length()) * d), want);
}

// A cached prefix: any number of its rows are kept and the rest computed anew, to the same bits.
TEST_P(Family, AContinuedPrefixGivesTheSameBits) {
  const auto want = Whole(model_);
  const std::int64_t d = model_->config().hidden;
  for (const std::int32_t kept : {1, 16, 31, 64, 130}) {
    const auto sequence = NewSequence(*model_, Length());
    RunHidden(pass_, *model_, sequence->view(), {tokens_.begin(), tokens_.begin() + kept});
    EXPECT_EQ(RunHidden(pass_, *model_, sequence->view(), {tokens_.begin() + kept, tokens_.end()},
                        kept, 50),
              std::vector<float>(want.begin() + kept * d, want.end()))
        << kept;
  }
}

class WindowedFamily : public Family {};

// What the window hides has no influence: other tokens before it change nothing after both layers'
// windows, and everything within.
TEST_P(WindowedFamily, AWindowHidesWhatLiesBeforeIt) {
  const std::int64_t d = model_->config().hidden;
  const auto want = Whole(model_);
  tokens_[100] = tokens_[100] == 5 ? 6 : 5;
  const auto got = Whole(model_);
  const auto row = [&](const std::vector<float>& x, std::int64_t r) {
    return std::vector<float>(x.begin() + r * d, x.begin() + (r + 1) * d);
  };
  const std::int64_t reach = 15 * model_->config().layers;
  EXPECT_EQ(row(got, 99), row(want, 99));
  EXPECT_NE(row(got, 100 + reach), row(want, 100 + reach));
  for (std::int64_t r = 101 + reach; r < Length(); ++r) EXPECT_EQ(row(got, r), row(want, r)) << r;
}

class GgufFamily : public Family {};

TEST_P(GgufFamily, GivesTheSameLogits) {
  const auto gguf = LoadModel(ModelTestData(GetParam().gguf), executor_);
  const ModelConfig& config = gguf->config();
  EXPECT_EQ(config.sliding_window, model_->config().sliding_window);
  EXPECT_EQ(config.windowed_layers, model_->config().windowed_layers);
  EXPECT_EQ(config.qkv_bias, model_->config().qkv_bias);
  EXPECT_EQ(config.attention_bias, model_->config().attention_bias);
  EXPECT_EQ(config.qk_norm, model_->config().qk_norm);
  EXPECT_EQ(RopeInverseFrequencies(config), RopeInverseFrequencies(model_->config()));
  EXPECT_NEAR(config.rope.attention_factor, model_->config().rope.attention_factor, 1e-9);
  EXPECT_LE(MaxAbsDiff(Whole(gguf), Whole(model_)), 1e-5);  // rms_eps is fp32 in the file
}

std::string NameOf(const ::testing::TestParamInfo<Variant>& info) {
  std::string name = info.param.name;
  for (char& c : name) c = c == '.' ? '_' : c;
  return name;
}

template <typename Keep>
std::vector<Variant> Only(const Keep& keep) {
  std::vector<Variant> kept;
  std::copy_if(std::begin(kVariants), std::end(kVariants), std::back_inserter(kept), keep);
  return kept;
}

INSTANTIATE_TEST_SUITE_P(Variants, Family, ::testing::ValuesIn(kVariants), NameOf);
INSTANTIATE_TEST_SUITE_P(Variants, WindowedFamily, ::testing::ValuesIn(Only([](const Variant& v) {
                           return v.windowed_layers == 2;  // both layers
                         })),
                         NameOf);
INSTANTIATE_TEST_SUITE_P(Variants, GgufFamily, ::testing::ValuesIn(Only([](const Variant& v) {
                           return v.gguf != nullptr;
                         })),
                         NameOf);

// A GGUF of every block type, with Q and K rows to be put in order among them, says what
// Transformers says with the values that the `gguf` package decodes.
TEST(BlockQuantised, LogitsAndTokensAgreeWithTransformers) {
  SerialExecutor executor;
  const Reference ref("kquant");
  const auto tokens = ref.I32("tokens");
  const std::string path = ModelTestData("tiny_kquant/model.gguf");
  std::set<StoredDType> types;
  const auto source = ModelSource::Open(path);
  ASSERT_TRUE(source.ok()) << source.status();
  for (const std::string& name : (*source)->TensorNames()) {
    types.insert((*source)->GetTensor(name)->view->dtype);
  }
  EXPECT_THAT(types, ::testing::UnorderedElementsAre(StoredDType::kF32, StoredDType::kQ5_0,
                                                     StoredDType::kQ5_1, StoredDType::kQ4_K,
                                                     StoredDType::kQ5_K, StoredDType::kQ6_K));
  const auto model = LoadModel(path, executor);
  ForwardPass pass(model, nullptr, executor);
  const auto sequence = NewSequence(*model, static_cast<std::int32_t>(tokens.size()));
  const auto hidden = RunHidden(pass, *model, sequence->view(), tokens);
  std::vector<std::int32_t> rows;
  for (std::int32_t r = 7; r < 200; r += 16) rows.push_back(r);
  const double tolerance =
      std::max(1e-4, 2 * ref.Scalar("tiny_kquant/eager_vs_sdpa").get<double>());
  EXPECT_LE(MaxAbsDiff(LogitsOf(pass, *model, hidden, rows), ref.F32("tiny_kquant/logits")),
            tolerance);
  const auto want = ref.I32("tiny_kquant/greedy");
  const auto gaps = ref.F32("tiny_kquant/greedy_gap");
  const auto got = Greedy(pass, *model, {tokens}, 64)[0];
  for (std::size_t i = 0; i < want.size(); ++i) {
    if (got[i] == want[i]) continue;
    ASSERT_LE(gaps[i], 1e-4) << "at token " << i;
    break;
  }
}

// Transformers 5 spells the same plan with layer_types and rope_parameters.
TEST(FamilyConfigs, BothFormsOfAConfigGiveTheSamePlan) {
  for (const std::string folder : {"tiny_qwen2", "tiny_qwen3"}) {
    const auto classic = ParseHfConfig(ReadTestFile(ModelTestData(folder + "/config.window.json")));
    const auto v5 = ParseHfConfig(ReadTestFile(ModelTestData(folder + "/config.window_v5.json")));
    ASSERT_TRUE(classic.ok()) << classic.status();
    ASSERT_TRUE(v5.ok()) << v5.status();
    EXPECT_EQ(*classic, *v5) << folder;
  }
}

// The frequencies and factors of `_compute_yarn_parameters` for each way to ask for them.
TEST(FamilyConfigs, YarnAgreesWithTransformers) {
  const Reference ref("families");
  const auto inv_freq = ref.F32("yarn_forms/inv_freq");
  const auto factors = ref.F32("yarn_forms/attention_factor");
  const auto& forms = ref.Scalar("yarn_forms");
  ASSERT_EQ(inv_freq.size(), forms.size() * 64);
  for (std::size_t f = 0; f < forms.size(); ++f) {
    nlohmann::json json = {{"architectures", {"LlamaForCausalLM"}},
                           {"model_type", "llama"},
                           {"num_hidden_layers", 2},
                           {"hidden_size", 512},
                           {"num_attention_heads", 4},
                           {"intermediate_size", 128},
                           {"vocab_size", 100},
                           {"max_position_embeddings", 32768},
                           {"rope_theta", 1e6},
                           {"rope_scaling", forms[f]}};
    for (const char* key : {"rope_type", "type"}) {
      json["rope_scaling"].erase("rope_type");
      json["rope_scaling"][key] = "yarn";
      const auto config = ParseHfConfig(json.dump());
      ASSERT_TRUE(config.ok()) << config.status();
      EXPECT_NEAR(config->rope.attention_factor, factors[f], 1e-6) << forms[f];
      const auto got = RopeInverseFrequencies(*config);
      for (std::size_t i = 0; i < 64; ++i) {
        EXPECT_NEAR(double{got[i]} / inv_freq[f * 64 + i], 1.0, 2.4e-7) << forms[f] << " " << i;
      }
      // The context reaches as far as the stretched frequencies.
      const double factor = forms[f].value("factor", 4.0);
      EXPECT_EQ(config->max_context, static_cast<std::int64_t>(32768 * factor)) << forms[f];
    }
  }
}

}  // namespace
}  // namespace baton
