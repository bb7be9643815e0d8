#include "common/weights/lora.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/weights/weights_files.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

class LoraTest : public ::testing::Test {
 protected:
  LoraTest() {
    model_.layers = 2;
    model_.hidden = 8;
    model_.heads = 4;
    model_.kv_heads = 2;
    model_.head_dim = 4;
    model_.ffn = 12;
    model_.vocab = 20;
    json_ = {{"peft_type", "LORA"},
             {"r", 2},
             {"lora_alpha", 4},
             {"bias", "none"},
             {"target_modules", {"q_proj", "v_proj"}}};
    for (const char* layer : {"0", "1"}) {
      Add(layer, "self_attn.q_proj", 2, 8, 16);
      Add(layer, "self_attn.v_proj", 2, 8, 8);
    }
  }

  static std::string Name(const std::string& layer, const std::string& module, char side) {
    return "base_model.model.model.layers." + layer + "." + module + ".lora_" + side + ".weight";
  }

  void Add(const std::string& layer, const std::string& module, int64_t rank, int64_t in,
           int64_t out) {
    tensors_[Name(layer, module, 'A')] = Counting({rank, in}, 0.5f);
    tensors_[Name(layer, module, 'B')] = Counting({out, rank}, -0.5f);
  }

  absl::StatusOr<LoraAdapter> Load(int64_t max_rank = kMaxLoraRank) {
    dir_.Write("adapter_config.json", json_.dump());
    dir_.Write("adapter_model.safetensors", SafetensorsBytes(tensors_));
    return LoadLoraAdapter(dir_.path(), "test", model_, max_rank);
  }

  std::string Error(int64_t max_rank = kMaxLoraRank) {
    const auto adapter = Load(max_rank);
    EXPECT_FALSE(adapter.ok());
    return std::string(adapter.status().message());
  }

  TempDir dir_;
  ModelConfig model_;
  Json json_;
  std::map<std::string, F32Tensor> tensors_;
};

TEST_F(LoraTest, ReadsBothSides) {
  const auto adapter = Load();
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_EQ(adapter->name, "test");
  EXPECT_EQ(adapter->max_rank, 2);
  ASSERT_EQ(adapter->layers.size(), 2u);
  const LoraModule& q = adapter->layers[1].at("q_proj");
  EXPECT_EQ(q.rank, 2);
  EXPECT_EQ(q.in, 8);
  EXPECT_EQ(q.out, 16);
  EXPECT_EQ(q.a, tensors_[Name("1", "self_attn.q_proj", 'A')].values);
  EXPECT_EQ(q.b, tensors_[Name("1", "self_attn.q_proj", 'B')].values);
  EXPECT_EQ(q.scale, 2.0f);
  EXPECT_FALSE(adapter->layers[0].contains("k_proj"));
}

// Case lora-01: alpha / sqrt(r) with rslora, alpha / r without.
TEST_F(LoraTest, RankStabilisedScale) {
  json_["target_modules"] = {"q_proj"};
  json_["lora_alpha"] = 16;
  for (const auto& [rank, plain, stabilised] :
       {std::tuple(16, 1.0f, 4.0f), std::tuple(64, 0.25f, 2.0f)}) {
    json_["r"] = rank;
    tensors_.clear();
    Add("0", "self_attn.q_proj", rank, 8, 16);
    json_["use_rslora"] = false;
    EXPECT_EQ(Load()->layers[0].at("q_proj").scale, plain);
    json_["use_rslora"] = true;
    EXPECT_EQ(Load()->layers[0].at("q_proj").scale, stabilised);
  }
}

TEST_F(LoraTest, RankAndAlphaPatterns) {
  json_["rank_pattern"] = {{"layers.1.self_attn.v_proj", 3}};
  json_["alpha_pattern"] = {{"v_proj", 6}};
  Add("1", "self_attn.v_proj", 3, 8, 8);
  const auto adapter = Load();
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  EXPECT_EQ(adapter->max_rank, 3);
  EXPECT_EQ(adapter->layers[1].at("v_proj").scale, 2.0f);
  EXPECT_EQ(adapter->layers[0].at("v_proj").scale, 3.0f);
  EXPECT_EQ(adapter->layers[0].at("q_proj").scale, 2.0f);
  // Of two that fit, the first in the file applies (`get_pattern_key` of PEFT).
  const std::string general = R"("v_proj":6)", special = R"("layers.1.self_attn.v_proj":12)";
  for (const auto& [first, second, scale] :
       {std::tuple(general, special, 2.0f), std::tuple(special, general, 4.0f)}) {
    json_["alpha_pattern"] = "PATTERN";
    std::string text = json_.dump();
    text.replace(text.find("\"PATTERN\""), 9, "{" + first + "," + second + "}");
    dir_.Write("adapter_config.json", text);
    const auto ordered = LoadLoraAdapter(dir_.path(), "test", model_);
    ASSERT_TRUE(ordered.ok()) << ordered.status();
    EXPECT_EQ(ordered->layers[1].at("v_proj").scale, scale) << text;
    EXPECT_EQ(ordered->layers[0].at("v_proj").scale, 3.0f) << text;
  }
  json_["alpha_pattern"] = {{"v_proj", 1e300}};  // beyond float
  EXPECT_THAT(std::string(Load().status().message()), HasSubstr("'alpha_pattern': 'v_proj'"));
}

TEST_F(LoraTest, DigestIsOfContents) {
  const std::string digest = Load()->digest;
  EXPECT_EQ(digest.size(), 32u);
  EXPECT_EQ(Load()->digest, digest);
  json_["lora_alpha"] = 5;
  EXPECT_NE(Load()->digest, digest);
  json_["lora_alpha"] = 4;
  tensors_[Name("0", "self_attn.q_proj", 'B')].values[3] += 1;
  EXPECT_NE(Load()->digest, digest);
}

// Case lora-03 and its kind.
TEST_F(LoraTest, WhatIsNotSupportedIsNamed) {
  const std::vector<std::pair<const char*, Json>> fields = {
      {"modules_to_save", {"embed_tokens", "lm_head"}},
      {"use_dora", true},
      {"bias", "lora_only"},
      {"bias", "all"},
      {"fan_in_fan_out", true},
      {"lora_bias", true},
      {"layer_replication", {{0, 1}}},
      {"trainable_token_indices", {1, 2}},
      {"target_parameters", {"mlp.experts"}},
      {"use_qalora", true},
      {"use_bdlora", {{"nblocks", 2}}},
      {"kasa_config", {{"beta", 0.1}}},
      {"arrow_config", {{"top_k", 3}}},
      {"alora_invocation_tokens", {5}},
      {"init_lora_weights", "pissa"},
      {"init_lora_weights", "pissa_niter_4"},
      {"init_lora_weights", "lora_ga"},
      {"init_lora_weights", "OLoRA"},
      {"something_of_the_future", 1},
      {"peft_type", "IA3"}};
  const Json original = json_;
  for (const auto& [key, value] : fields) {
    json_ = original;
    json_[key] = value;
    EXPECT_THAT(Error(), HasSubstr(key));
  }
  // Unset, or without influence on the result.
  json_ = original;
  json_.update({{"modules_to_save", nullptr},
                {"use_dora", false},
                {"something_of_the_future", nullptr},
                {"init_lora_weights", "gaussian"},
                {"lora_dropout", 0.1},
                {"qalora_group_size", 16},
                {"megatron_core", "megatron.core"},
                {"auto_mapping", {{"parent_library", "transformers"}}},
                {"layers_to_transform", {0, 1}}});
  EXPECT_TRUE(Load().ok()) << Load().status();
  json_ = original;
  json_["target_modules"] = {"q_proj", "v_proj", "embed_tokens"};
  EXPECT_THAT(Error(), HasSubstr("embed_tokens"));
}

// Case lora-05: both numbers, before anything is read.
TEST_F(LoraTest, RankAboveTheLimit) {
  json_["r"] = 64;
  EXPECT_THAT(Error(16), AllOf(HasSubstr("64"), HasSubstr("16")));
  json_["r"] = 2;
  json_["rank_pattern"] = {{"v_proj", 64}};
  EXPECT_THAT(Error(16), AllOf(HasSubstr("64"), HasSubstr("16")));
}

TEST_F(LoraTest, TensorsHaveToFit) {
  const auto original = tensors_;
  tensors_[Name("0", "self_attn.q_proj", 'A')] = Counting({2, 9}, 0);
  EXPECT_THAT(Error(), AllOf(HasSubstr("[2, 9]"), HasSubstr("[2, 8]"), HasSubstr("q_proj")));
  tensors_ = original;
  tensors_.erase(Name("1", "self_attn.v_proj", 'B'));
  EXPECT_THAT(Error(), AllOf(HasSubstr("layer 1 v_proj"), HasSubstr("lora_B")));
  tensors_ = original;
  Add("2", "self_attn.q_proj", 2, 8, 16);
  EXPECT_THAT(Error(), HasSubstr("layer 2"));
  tensors_ = original;
  Add("0", "mlp.up_proj", 2, 8, 12);
  EXPECT_THAT(Error(), HasSubstr("target_modules"));
  tensors_ = original;
  // Case lora-03: replacements of whole tensors, declared or not, one with a row more.
  for (const char* name :
       {"base_model.model.lm_head.weight", "base_model.model.model.embed_tokens.weight"}) {
    for (const int64_t rows : {20, 21}) {
      tensors_ = original;
      tensors_[name] = Counting({rows, 8}, 0);
      EXPECT_THAT(Error(), HasSubstr(name));
    }
  }
  tensors_ = original;
  // DoRA's and lora_bias's tensors, should the config not say so.
  for (const char* end : {".lora_magnitude_vector.weight", ".lora_B.bias"}) {
    const std::string name = std::string("base_model.model.model.layers.0.self_attn.q_proj") + end;
    tensors_ = original;
    tensors_[name] = Counting({16}, 0);
    EXPECT_THAT(Error(), HasSubstr(name));
  }
  tensors_ = original;
  tensors_[Name("0", "self_attn.q_proj", 'A')].values[0] = NAN;
  EXPECT_THAT(Error(), HasSubstr("not finite"));
  tensors_.clear();
  EXPECT_THAT(Error(), HasSubstr("no tensors"));
}

TEST_F(LoraTest, BadConfig) {
  for (const char* key : {"r", "lora_alpha"}) {
    const Json value = json_[key];
    for (const Json& bad : {Json(0), Json(-1), Json("x"), Json()}) {
      json_[key] = bad;
      EXPECT_THAT(Error(), HasSubstr(key));
    }
    json_[key] = value;
  }
  dir_.Write("adapter_config.json", "{");
  EXPECT_FALSE(LoadLoraAdapter(dir_.path(), "x", model_).ok());
  EXPECT_EQ(LoadLoraAdapter("/nonexistent", "x", model_).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace baton
