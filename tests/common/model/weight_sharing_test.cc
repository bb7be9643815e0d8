// Models loaded with one store hold equal matrices once.
#include <filesystem>
#include <fstream>
#include <string>

#include "common/base/ids.h"
#include "common/model/model_weights.h"
#include "common/model/weight_store.h"
#include "nlohmann/json.hpp"
#include "tests/common/model/model_fixture.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_model.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

class WeightSharing : public ::testing::Test {
 protected:
  WeightSharing() : dir_(fs::temp_directory_path() / ("baton_share_" + HexId(RandomId64()))) {
    WriteTinyLlama(dir_ / "base");
  }
  ~WeightSharing() override { fs::remove_all(dir_); }

  // Where the tensor lies in the folder's model.safetensors: first byte and length.
  static std::pair<std::size_t, std::size_t> Place(const fs::path& folder,
                                                   const std::string& tensor) {
    const std::string file = ReadFileOrEmpty(folder / "model.safetensors");
    std::uint64_t header = 0;
    std::memcpy(&header, file.data(), sizeof(header));
    const auto offsets = nlohmann::json::parse(file.substr(8, header))[tensor]["data_offsets"];
    const std::size_t begin = 8 + header + offsets[0].get<std::size_t>();
    return {begin, offsets[1].get<std::size_t>() - offsets[0].get<std::size_t>()};
  }

  // A full fine-tune of the base that changed one value of `tensor`.
  fs::path Tuned(const std::string& name, const std::string& tensor) {
    const fs::path folder = dir_ / name;
    fs::copy(dir_ / "base", folder);
    std::fstream file(folder / "model.safetensors",
                      std::ios::binary | std::ios::in | std::ios::out);
    file.seekp(static_cast<std::streamoff>(Place(folder, tensor).first));
    const float value = 0.25f;
    file.write(reinterpret_cast<const char*>(&value), sizeof(value));
    return folder;
  }

  std::shared_ptr<const Model> Load(const fs::path& folder, WeightStore* store,
                                    WeightDType dtype = WeightDType::kF32) {
    auto source = ModelSource::Open(folder);
    if (!source.ok()) throw std::runtime_error(source.status().ToString());
    auto model =
        Model::Load(**source, {.weight_dtype = dtype, .executor = executor_.get(), .store = store});
    if (!model.ok()) throw std::runtime_error(model.status().ToString());
    return *model;
  }

  std::vector<float> Hidden(const std::shared_ptr<const Model>& model) {
    ForwardPass pass(model, nullptr, *executor_);
    const auto sequence = NewSequence(*model, 16);
    return RunHidden(pass, *model, sequence->view(), Iota(16, 40));
  }

  static std::size_t VectorBytes(const Model& model) {
    const auto& c = model.config();
    return sizeof(float) * static_cast<std::size_t>((2 * c.layers + 1) * c.hidden);
  }

  const fs::path dir_;
  std::unique_ptr<Executor> executor_ = MakeThreadPool(2);
};

TEST_F(WeightSharing, FineTunesHoldOnlyWhatDiffers) {
  WeightStore store;
  const fs::path tuned_folder = Tuned("tuned", "model.layers.1.mlp.up_proj.weight");
  auto base = Load(dir_ / "base", &store);
  EXPECT_EQ(base->own_weight_bytes(), base->weight_bytes());
  auto tuned = Load(tuned_folder, &store);
  const std::size_t changed = tuned->weights().layers[1].gate_up.bytes();
  EXPECT_EQ(tuned->weight_bytes(), base->weight_bytes());
  EXPECT_EQ(tuned->own_weight_bytes(), changed + VectorBytes(*tuned));
  EXPECT_NE(tuned->served_digest(), base->served_digest());
  const auto matrices = static_cast<std::int64_t>(base->weight_bytes() - VectorBytes(*base));
  EXPECT_EQ(store.bytes(), matrices + static_cast<std::int64_t>(changed));

  // The same numbers as alone, also after the model that packed them has gone.
  const auto expected = Hidden(Load(tuned_folder, nullptr));
  EXPECT_EQ(Hidden(tuned), expected);
  EXPECT_NE(Hidden(base), expected);
  base.reset();
  EXPECT_EQ(store.bytes(), matrices);
  EXPECT_EQ(Hidden(tuned), expected);
  tuned.reset();
  EXPECT_EQ(store.bytes(), 0);

  // Nothing stale is found afterwards.
  base = Load(dir_ / "base", &store);
  EXPECT_EQ(base->own_weight_bytes(), base->weight_bytes());
}

TEST_F(WeightSharing, AnotherDtypeIsAnotherMatrix) {
  WeightStore store;
  const auto full = Load(dir_ / "base", &store);
  const auto half = Load(dir_ / "base", &store, WeightDType::kBF16);
  EXPECT_EQ(half->own_weight_bytes(), half->weight_bytes());
}

// Case ldr-03: an untied head that equals the embedding is one matrix, too.
TEST_F(WeightSharing, AHeadThatEqualsTheEmbedding) {
  const fs::path folder = dir_ / "base";
  const auto [from, bytes] = Place(folder, "model.embed_tokens.weight");
  const std::string file = ReadFileOrEmpty(folder / "model.safetensors");
  std::fstream out(folder / "model.safetensors", std::ios::binary | std::ios::in | std::ios::out);
  out.seekp(static_cast<std::streamoff>(Place(folder, "lm_head.weight").first));
  out.write(file.data() + from, static_cast<std::streamsize>(bytes));
  out.close();
  WeightStore store;
  const auto model = Load(folder, &store);
  EXPECT_FALSE(model->config().tie_embeddings);
  EXPECT_EQ(model->own_weight_bytes(), model->weight_bytes() - model->weights().embedding.bytes());
  EXPECT_EQ(Hidden(model), Hidden(Load(folder, nullptr)));
}

// The hashes made while loading are those of a separate reading.
TEST_F(WeightSharing, DigestOfLoadingIsTheSourcesOwn) {
  for (const std::string& path : {(dir_ / "base").string(), SmolLm2GgufPath()}) {
    if (!fs::exists(path)) continue;
    const auto separate = ModelSource::Open(path);
    const auto loaded = ModelSource::Open(path);
    ASSERT_TRUE(separate.ok() && loaded.ok());
    const std::string digest = (*separate)->WeightsDigest(2);
    ASSERT_TRUE(Model::Load(**loaded, {.executor = executor_.get()}).ok());
    EXPECT_EQ((*loaded)->WeightsDigest(), digest) << path;
  }
}

TEST_F(WeightSharing, ProgressEndsAtTheWhole) {
  const auto source = ModelSource::Open(dir_ / "base");
  ASSERT_TRUE(source.ok());
  WeightStore store;
  for (int round = 0; round < 2; ++round) {  // packed, then shared
    std::int64_t last = 0, whole = 0;
    std::shared_ptr<const Model> keep = Load(dir_ / "base", round == 0 ? nullptr : &store);
    const auto model = Model::Load(**source, {.executor = executor_.get(),
                                              .progress =
                                                  [&](std::int64_t done, std::int64_t total) {
                                                    EXPECT_GE(done, last);
                                                    last = done;
                                                    whole = total;
                                                  },
                                              .store = &store});
    ASSERT_TRUE(model.ok()) << model.status();
    EXPECT_GT(whole, 0);
    EXPECT_EQ(last, whole);
  }
}

}  // namespace
}  // namespace baton
