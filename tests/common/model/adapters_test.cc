// Adapters applied per row, against Hugging Face PEFT and against merged weights.
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/model/model.h"
#include "common/weights/lora.h"
#include "gmock/gmock.h"
#include "tests/common/model/model_fixture.h"

namespace baton {
namespace {

namespace fs = std::filesystem;

// A Hugging Face folder of `base` with the adapter's deltas added to its matrices, in fp32.
class MergedFolder {
 public:
  MergedFolder(const std::string& base, const LoraAdapter& adapter)
      : path_(fs::path(::testing::TempDir()) /
              absl::StrCat("baton_merged_", adapter.name, "_", ::getpid())) {
    fs::remove_all(path_);
    fs::create_directories(path_);
    fs::copy(base + "/config.json", path_);
    const auto source = ModelSource::Open(base).value();
    nlohmann::json header;
    std::string blob;
    for (const auto& [name, shape] : ExpectedTensors(source->config())) {
      std::int64_t n = 1;
      for (std::int64_t d : shape) n *= d;
      std::vector<float> w(n);
      if (!source->ReadTensorF32(name, shape, w.data()).ok()) throw std::runtime_error(name);
      AddDelta(name, adapter, w);
      header[name] = {{"dtype", "F32"},
                      {"shape", shape},
                      {"data_offsets", {blob.size(), blob.size() + n * sizeof(float)}}};
      blob.append(reinterpret_cast<const char*>(w.data()), n * sizeof(float));
    }
    std::string text = header.dump();
    text.append((8 - text.size() % 8) % 8, ' ');
    const std::uint64_t size = text.size();
    std::ofstream out(path_ / "model.safetensors", std::ios::binary);
    out.write(reinterpret_cast<const char*>(&size), sizeof(size));
    out << text << blob;
  }
  ~MergedFolder() { fs::remove_all(path_); }
  std::string path() const { return path_.string(); }

 private:
  static void AddDelta(const std::string& name, const LoraAdapter& adapter, std::vector<float>& w) {
    for (std::size_t i = 0; i < adapter.layers.size(); ++i) {
      for (const auto& [module, m] : adapter.layers[i]) {
        if (name.rfind(absl::StrCat("model.layers.", i, "."), 0) != 0 ||
            name.find(module + ".weight") == std::string::npos) {
          continue;
        }
        for (std::int64_t o = 0; o < m.out; ++o) {
          for (std::int64_t j = 0; j < m.in; ++j) {
            double sum = 0;
            for (std::int64_t r = 0; r < m.rank; ++r) {
              sum += static_cast<double>(m.b[o * m.rank + r]) * m.a[r * m.in + j];
            }
            w[o * m.in + j] += static_cast<float>(m.scale * sum);
          }
        }
      }
    }
  }

  fs::path path_;
};

class AdaptersTest : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"all", "qv"}) {
      auto adapter = LoadLoraAdapter(ModelTestData(absl::StrCat("tiny_llama_lora_", name)), name,
                                     model_->config());
      ASSERT_TRUE(adapter.ok()) << adapter.status();
      auto index = set_.Add(*adapter, executor_);
      ASSERT_TRUE(index.ok()) << index.status();
      EXPECT_EQ(*index, static_cast<int>(adapters_.size()));
      adapters_.push_back(*std::move(adapter));
    }
  }

  std::vector<float> Alone(int adapter, const std::vector<std::int32_t>& tokens) {
    const auto sequence = NewSequence(*model_, static_cast<std::int32_t>(tokens.size()));
    return RunHidden(pass_, *model_, sequence->view(), tokens, 0, 1 << 30, adapter);
  }

  SerialExecutor executor_;
  Reference ref_{"tiny"};
  std::vector<std::int32_t> tokens_ = ref_.I32("tokens");
  std::shared_ptr<const Model> model_ = LoadModel(ModelTestData("tiny_llama"), executor_);
  AdapterSet set_{model_};
  std::vector<LoraAdapter> adapters_;
  ForwardPass pass_{model_, &set_, executor_};
};

TEST_F(AdaptersTest, LogitsAgreeWithPeft) {
  std::vector<std::int32_t> rows;
  for (int i = 0; i < 40; i += 4) rows.push_back(i);
  for (std::size_t a = 0; a < adapters_.size(); ++a) {
    const std::string prefix = "tiny_llama_lora_" + adapters_[a].name + "/";
    const auto logits = LogitsOf(pass_, *model_, Alone(static_cast<int>(a), tokens_), rows);
    const double tolerance =
        std::max(1e-4, 2 * ref_.Scalar(prefix + "merged_vs_adapter").get<double>());
    EXPECT_LE(MaxAbsDiff(logits, ref_.F32(prefix + "logits")), tolerance) << adapters_[a].name;
    EXPECT_GT(MaxAbsDiff(logits, ref_.F32("tiny_llama/logits")), 0.1) << "adapter had no effect";
  }
}

// Of two entries of alpha_pattern that fit a module, PEFT takes the first in the file.
TEST_F(AdaptersTest, OverlappingPatternsAgreeWithPeft) {
  const auto adapter =
      LoadLoraAdapter(ModelTestData("tiny_llama_lora_patterns"), "patterns", model_->config());
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  const auto index = set_.Add(*adapter, executor_);
  ASSERT_TRUE(index.ok()) << index.status();
  const Reference ref("families");
  auto tokens = ref.I32("tokens");
  tokens.resize(40);
  std::vector<std::int32_t> rows;
  for (int i = 0; i < 40; i += 4) rows.push_back(i);
  const auto logits = LogitsOf(pass_, *model_, Alone(*index, tokens), rows);
  EXPECT_LE(MaxAbsDiff(logits, ref.F32("tiny_llama_lora_patterns/logits")), 1e-4);
}

// Six sequences, adapters mixed and repeated, one batch: each row has the bits of its sequence run
// alone, and agrees with the adapter merged into the weights.
TEST_F(AdaptersTest, MixedBatchEqualsEachAdapterMergedAndRunAlone) {
  const std::int64_t d = model_->config().hidden;
  const int chosen[] = {0, kNoAdapter, 1, 1, 0, kNoAdapter};
  const int lengths[] = {7, 12, 3, 20, 1, 5};
  std::vector<std::int32_t> batch_tokens, positions;
  std::vector<std::unique_ptr<SingleSequence>> sequences;
  std::vector<SequenceSlice> slices;
  for (int s = 0; s < 6; ++s) {
    const auto begin = static_cast<std::int32_t>(batch_tokens.size());
    for (int t = 0; t < lengths[s]; ++t) {
      batch_tokens.push_back(tokens_[(s * 5 + t) % 40]);
      positions.push_back(t);
    }
    sequences.push_back(NewSequence(*model_, lengths[s]));
    slices.push_back({begin, begin + lengths[s], &sequences.back()->view(), chosen[s]});
  }
  float* h = pass_.Embed(batch_tokens);
  pass_.RunLayers(0, static_cast<int>(model_->config().layers), h,
                  {.positions = positions, .sequences = slices}, nullptr);
  const std::vector<float> batch(h, h + batch_tokens.size() * d);

  std::map<int, std::shared_ptr<const Model>> merged = {{kNoAdapter, model_}};
  for (int a = 0; a < 2; ++a) {
    const MergedFolder folder(ModelTestData("tiny_llama"), adapters_[a]);
    merged[a] = LoadModel(folder.path(), executor_);
  }
  for (const SequenceSlice& s : slices) {
    const std::vector<std::int32_t> own(batch_tokens.begin() + s.row_begin,
                                        batch_tokens.begin() + s.row_end);
    const std::vector<float> rows(batch.begin() + s.row_begin * d, batch.begin() + s.row_end * d);
    EXPECT_EQ(rows, Alone(s.adapter, own)) << "row " << s.row_begin;
    ForwardPass pass(merged[s.adapter], nullptr, executor_);
    const auto sequence = NewSequence(*model_, s.row_end - s.row_begin);
    EXPECT_LE(MaxAbsDiff(rows, RunHidden(pass, *model_, sequence->view(), own)), 1e-4)
        << "row " << s.row_begin;
  }
}

TEST_F(AdaptersTest, AdaptersThatDoNotFitAreRefusedByName) {
  LoraAdapter wrong = adapters_[0];
  wrong.layers[1].at("v_proj").out += 8;
  absl::Status status = set_.Add(wrong, executor_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()),
              ::testing::AllOf(::testing::HasSubstr("layer 1"), ::testing::HasSubstr("v_proj")));

  LoraAdapter odd = adapters_[0];
  odd.layers[0]["lm_head"] = odd.layers[0].at("v_proj");
  EXPECT_THAT(std::string(set_.Add(odd, executor_).status().message()),
              ::testing::HasSubstr("lm_head"));

  LoraAdapter short_one = adapters_[0];
  short_one.layers.pop_back();
  EXPECT_THAT(std::string(set_.Add(short_one, executor_).status().message()),
              ::testing::HasSubstr("2 layers"));
  EXPECT_EQ(set_.size(), 2);
}

}  // namespace
}  // namespace baton
