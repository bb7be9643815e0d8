#include "common/node/model_host.h"

#include <filesystem>
#include <fstream>
#include <set>

#include "common/base/ids.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/test_data.h"
#include "tests/support/tiny_model.h"

namespace baton {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class ModelHostTest : public ::testing::Test {
 protected:
  ModelHostTest()
      : dir_(std::filesystem::temp_directory_path() / ("baton_host_" + HexId(RandomId64()))) {
    WriteTinyLlama(dir_ / "a", {.seed = 1});
    WriteTinyLlama(dir_ / "b", {.seed = 2});
    options_.memory.kv_cache = 8 << 20;
  }
  ~ModelHostTest() override { std::filesystem::remove_all(dir_); }

  void Add(const std::string& name, const std::string& folder) {
    ModelEntry e;
    e.name = name;
    e.path = (dir_ / folder).string();
    options_.models.push_back(e);
  }
  absl::StatusOr<std::unique_ptr<ModelHost>> Load() {
    auto files = ModelFiles::Open(options_.models);
    if (!files.ok()) return files.status();
    return ModelHost::Load(options_, *std::move(files), metrics_);
  }

  std::filesystem::path dir_;
  ModelHostOptions options_;
  MetricRegistry metrics_;
};

TEST_F(ModelHostTest, EntriesOfOnePathShareAnEngine) {
  Add("one", "a");
  Add("two", "a");
  Add("three", "b");
  auto host = Load();
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_EQ((*host)->Find("one")->engine, (*host)->Find("two")->engine);
  EXPECT_NE((*host)->Find("one")->engine, (*host)->Find("three")->engine);
  EXPECT_EQ((*host)->Find("one")->weights_digest, (*host)->Find("two")->weights_digest);
  EXPECT_NE((*host)->Find("one")->weights_digest, (*host)->Find("three")->weights_digest);
  EXPECT_EQ((*host)->Find("none"), nullptr);
  EXPECT_EQ((*host)->Find(""), nullptr);  // ambiguous
  EXPECT_EQ((*host)->plan().lines.size(), 2u);
  // All pages of the one pool, and not more bytes than were allowed.
  const auto totals = (*host)->GetTotals();
  const auto page = static_cast<std::int64_t>((*host)->Find("one")->page_layout.page_bytes());
  EXPECT_LE(totals.pages_total * page, 8 << 20);
  EXPECT_GT(totals.pages_total * page, 7 << 20);
}

// An entry's template adds its end of turn to what ends that entry's generation, and only there.
TEST_F(ModelHostTest, AnEndOfTurnIsTheEntrysOwn) {
  const auto replace = [&](const char* file, const std::string& from, const std::string& to) {
    std::string text = ReadFileOrEmpty((dir_ / "a" / file).string());
    text.replace(text.find(from), from.size(), to);
    std::ofstream(dir_ / "a" / file) << text;
  };
  replace("config.json", R"("eos_token_id":257)", R"("eos_token_id":258)");
  replace("tokenizer_config.json", R"("eos_token":"<|im_end|>")", R"("eos_token":"<|endoftext|>")");
  Add("chatml", "a");
  Add("llama", "a");
  options_.models[1].chat_template = "llama3";  // its end of turn is not in this vocabulary
  auto host = Load();
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_EQ((*host)->Find("chatml")->engine, (*host)->Find("llama")->engine);
  EXPECT_THAT((*host)->Find("chatml")->eos_token_ids, testing::ElementsAre(257, 258));
  EXPECT_THAT((*host)->Find("llama")->eos_token_ids, testing::ElementsAre(258));
}

TEST_F(ModelHostTest, AnotherWeightDtypeIsAnotherSpace) {
  Add("full", "a");
  Add("half", "a");
  options_.models[1].weight_dtype = WeightDType::kBF16;
  auto host = Load();
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_NE((*host)->Find("full")->native_space.Digest(),
            (*host)->Find("half")->native_space.Digest());
}

// K and V of equal weights differ when the config sees or turns them differently.
TEST_F(ModelHostTest, AnotherWindowOrRopeIsAnotherSpace) {
  const auto variant = [&](const std::string& name, const std::string& from,
                           const std::string& to) {
    std::filesystem::copy(dir_ / "a", dir_ / name);
    std::string config = ReadFileOrEmpty((dir_ / name / "config.json").string());
    config.replace(config.find(from), from.size(), to);
    std::ofstream(dir_ / name / "config.json") << config;
    Add(name, name);
  };
  Add("a", "a");
  variant("yarn", R"("rope_scaling":null)",
          R"("rope_scaling":{"type":"yarn","factor":2.0,"attention_factor":1.0})");
  variant("louder", R"("rope_scaling":null)",
          R"("rope_scaling":{"type":"yarn","factor":2.0,"attention_factor":1.5})");
  variant("windowed", R"("model_type":"llama")", R"("sliding_window":16,"model_type":"mistral")");
  // The architecture's name goes with the type.
  std::string config = ReadFileOrEmpty((dir_ / "windowed" / "config.json").string());
  config.replace(config.find("LlamaForCausalLM"), 16, "MistralForCausalLM");
  std::ofstream(dir_ / "windowed" / "config.json") << config;
  auto host = Load();
  ASSERT_TRUE(host.ok()) << host.status();
  std::set<std::string> spaces, weights;
  for (const char* name : {"a", "yarn", "louder", "windowed"}) {
    spaces.insert((*host)->Find(name)->native_space.Digest());
    weights.insert((*host)->Find(name)->weights_digest);
  }
  EXPECT_EQ(spaces.size(), 4u);
  EXPECT_EQ(weights.size(), 1u);
}

// Full fine-tunes, other files of the base's dtypes: what is equal is in memory once.
TEST_F(ModelHostTest, EqualWeightsOfOtherFoldersAreHeldOnce) {
  std::filesystem::copy(dir_ / "a", dir_ / "copy");
  Add("base", "a");
  Add("copy", "copy");
  auto host = Load();
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_NE((*host)->Find("base")->engine, (*host)->Find("copy")->engine);
  EXPECT_EQ((*host)->Find("base")->weights_digest, (*host)->Find("copy")->weights_digest);
  const std::int64_t both = (*host)->plan().weight_bytes;
  EXPECT_THAT((*host)->plan().lines[1], HasSubstr("shared with other models"));
  const std::string metrics = metrics_.SerializeText();
  EXPECT_THAT(metrics, HasSubstr("baton_weight_bytes{model=\"base\"}"));
  host->reset();
  options_.models.pop_back();
  host = Load();
  ASSERT_TRUE(host.ok()) << host.status();
  const std::int64_t alone = (*host)->plan().weight_bytes;
  EXPECT_GT(both, alone);  // norms are a model's own
  EXPECT_LT(both, alone + alone / 100);
}

TEST_F(ModelHostTest, AnotherKvDtypeOfOneFileSharesTheWeights) {
  Add("one", "a");
  Add("two", "a");
  options_.models[1].kv_dtype = DType::kBF16;
  auto host = Load();
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_NE((*host)->Find("one")->engine, (*host)->Find("two")->engine);
  EXPECT_THAT((*host)->plan().lines[1], HasSubstr("shared with other models"));
}

TEST_F(ModelHostTest, EqualAdaptersAreOneAndRanksAreLimited) {
  Add("base", "a");
  for (const char* name : {"one", "other"}) {
    std::filesystem::create_directories(dir_ / name);
    std::ofstream(dir_ / name / "adapter_config.json")
        << R"({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "target_modules": ["q_proj"]})";
    tiny_model_internal::Safetensors tensors(3);
    for (const char* layer : {"0", "1", "2"}) {
      const std::string module =
          std::string("base_model.model.model.layers.") + layer + ".self_attn.q_proj.lora_";
      tensors.Add(module + "A.weight", {2, 64}, 0.1f);
      tensors.Add(module + "B.weight", {64, 2}, 0.1f);
    }
    tensors.Write(dir_ / name / "adapter_model.safetensors");
    Add(name, "a");
    options_.models.back().adapter = (dir_ / name).string();
  }
  auto host = Load();
  ASSERT_TRUE(host.ok()) << host.status();
  EXPECT_EQ((*host)->Find("one")->adapter, 0);
  EXPECT_EQ((*host)->Find("other")->adapter, 0);
  EXPECT_EQ((*host)->Find("one")->weights_digest, (*host)->Find("other")->weights_digest);
  EXPECT_NE((*host)->Find("one")->weights_digest, (*host)->Find("base")->weights_digest);
  EXPECT_THAT(std::string(ModelFiles::Open(options_.models, 1).status().message()),
              AllOf(HasSubstr("models[1] (one)"), HasSubstr("models[2] (other)"),
                    HasSubstr("'r' is 2, at most 1"), testing::Not(HasSubstr("models[0]"))));
}

TEST_F(ModelHostTest, ErrorsNameEntryAndField) {
  Add("a", "a");
  Add("gone", "gone");
  Add("lost", "lost");
  EXPECT_THAT(std::string(Load().status().message()),
              AllOf(HasSubstr("models[1] (gone)"), HasSubstr("models[2] (lost)")));
  options_.models.pop_back();
  options_.models[1].path = options_.models[0].path;
  options_.models[1].selective_layers = "1-3";
  EXPECT_THAT(std::string(Load().status().message()),
              AllOf(HasSubstr("models[1]"), HasSubstr("selective_layers: 1-3"), HasSubstr("0-2")));
  options_.models[1].selective_layers.clear();
  options_.models[1].max_context = 100000;
  EXPECT_THAT(std::string(Load().status().message()),
              AllOf(HasSubstr("max_context"), HasSubstr("100000"), HasSubstr("2048")));
  options_.models[1].max_context = 0;
  options_.models[1].chat_template = "/no/such/template";
  EXPECT_THAT(std::string(Load().status().message()), HasSubstr("chat_template"));
  options_.models.pop_back();
  options_.memory.kv_cache = 64 << 10;
  options_.models[0].kv_dtype = DType::kF32;
  const auto small = Load();  // 64 KiB: 48 KiB a block of this model, it fits
  EXPECT_TRUE(small.ok()) << small.status();
}

TEST_F(ModelHostTest, SmolLm2) {
  const std::string path = SmolLm2GgufPath();
  BATON_SKIP_WITHOUT(path);
  ModelEntry e;
  e.name = "smollm2";
  e.path = path;
  e.weight_dtype = WeightDType::kBF16;
  options_.models = {e};
  options_.memory.kv_cache = 64 << 20;
  auto host = Load();
  ASSERT_TRUE(host.ok()) << host.status();
  const HostedModel* m = (*host)->Find("");
  ASSERT_NE(m, nullptr);
  EXPECT_EQ(m->vocab, 49152);
  EXPECT_FALSE(m->chat_template_digest.empty());
  EXPECT_EQ(m->native_space.layout.layers, 30u);
}

}  // namespace
}  // namespace baton
