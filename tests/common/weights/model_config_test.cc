#include "common/weights/model_config.h"

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/test_data.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

Json Llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"model_type", "llama"},
          {"num_hidden_layers", 2},
          {"hidden_size", 64},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"intermediate_size", 128},
          {"vocab_size", 100},
          {"max_position_embeddings", 512},
          {"rms_norm_eps", 1e-5},
          {"eos_token_id", 2}};
}

// 14 real configurations and what has to be derived from each.
TEST(ModelConfigTest, RealConfigurations) {
  const std::string dir = SharedDataDir() + "/configs/";
  BATON_SKIP_WITHOUT(dir + "expected.jsonl");
  std::ifstream in(dir + "expected.jsonl");
  int models = 0;
  for (std::string line; std::getline(in, line); ++models) {
    const Json row = Json::parse(line);
    const std::string name = row["model"];
    const auto config = ParseHfConfig(ReadFileOrEmpty(dir + name + ".json"));
    if (name.find("moe") != std::string::npos) {
      EXPECT_EQ(config.status().code(), absl::StatusCode::kUnimplemented);
      EXPECT_THAT(std::string(config.status().message()), HasSubstr("experts"));
      continue;
    }
    ASSERT_TRUE(config.ok()) << name << ": " << config.status();
    EXPECT_EQ(config->architecture, row["model_type"].get<std::string>());
    EXPECT_EQ(config->layers, row["layers"]) << name;
    EXPECT_EQ(config->hidden, row["hidden"]) << name;
    EXPECT_EQ(config->heads, row["heads"]) << name;
    EXPECT_EQ(config->kv_heads, row["kv_heads"]) << name;
    EXPECT_EQ(config->head_dim, row["head_dim"]) << name;
    EXPECT_EQ(config->qkv_bias, row["qkv_bias"]) << name;
    EXPECT_EQ(config->qk_norm, row["qk_norm"]) << name;
    EXPECT_EQ(config->tie_embeddings, row["tied"]) << name;
    EXPECT_EQ(config->rope.theta, row["rope_theta"].get<double>()) << name;
    EXPECT_EQ(config->rope.scaling == RopeConfig::Scaling::kLlama3,
              row["rope_scaling"] == "llama3");
    EXPECT_EQ(config->sliding_window.has_value(), row["sliding_window_active"].get<bool>()) << name;
    int64_t parameters = 0;
    for (const auto& [tensor, shape] : ExpectedTensors(*config)) {
      parameters += shape.size() == 1 ? shape[0] : shape[0] * shape[1];
    }
    EXPECT_EQ(parameters, row["parameters"].get<int64_t>()) << name;
    EXPECT_EQ(CheckRunnable(*config).ok(), config->architecture != "mistral") << name;
  }
  EXPECT_EQ(models, 14);
}

// Case cfg-01; the factors were computed by the authors of the evaluation data.
TEST(ModelConfigTest, Llama3RopeScaling) {
  Json json = Llama();
  json["head_dim"] = 128;
  json["rope_theta"] = 500000;
  const auto plain = ParseHfConfig(json.dump());
  ASSERT_TRUE(plain.ok()) << plain.status();
  const Json scaling = {{"factor", 8.0},
                        {"low_freq_factor", 1.0},
                        {"high_freq_factor", 4.0},
                        {"original_max_position_embeddings", 8192}};
  for (const char* key : {"rope_type", "type"}) {
    json["rope_scaling"] = scaling;
    json["rope_scaling"][key] = "llama3";
    const auto config = ParseHfConfig(json.dump());
    ASSERT_TRUE(config.ok()) << config.status();
    const auto scaled = RopeInverseFrequencies(*config);
    const auto base = RopeInverseFrequencies(*plain);
    ASSERT_EQ(scaled.size(), 64u);
    const std::vector<double> blend = {0.828168, 0.643743, 0.493507, 0.371122, 0.271425, 0.190211};
    for (size_t i = 0; i < 64; ++i) {
      const double expected = i <= 28 ? 1.0 : i <= 34 ? blend[i - 29] : 0.125;
      EXPECT_NEAR(double{scaled[i]} / base[i], expected, 2e-6) << i;
    }
  }
  json["rope_scaling"] = nullptr;
  EXPECT_EQ(*ParseHfConfig(json.dump()), *plain);
  // Transformers 5 writes theta and scaling together.
  json.erase("rope_scaling");
  json.erase("rope_theta");
  json["rope_parameters"] = {{"rope_theta", 500000.0}, {"rope_type", "default"}};
  EXPECT_EQ(*ParseHfConfig(json.dump()), *plain);
}

// Case cfg-03.
TEST(ModelConfigTest, SlidingWindowIsActiveOnlyWhenSwitchedOn) {
  const auto window = [](const char* type, const char* name, const Json& extra) {
    Json json = Llama();
    json["model_type"] = type;
    json["architectures"] = {name};
    json.update(extra);
    const auto config = ParseHfConfig(json.dump());
    EXPECT_TRUE(config.ok()) << config.status();
    return config->sliding_window;
  };
  EXPECT_EQ(window("qwen2", "Qwen2ForCausalLM",
                   {{"sliding_window", 131072}, {"use_sliding_window", false}}),
            std::nullopt);
  EXPECT_EQ(window("mistral", "MistralForCausalLM", {{"sliding_window", nullptr}}), std::nullopt);
  EXPECT_EQ(window("mistral", "MistralForCausalLM", Json::object()), std::nullopt);
  EXPECT_EQ(window("mistral", "MistralForCausalLM", {{"sliding_window", 4096}}), 4096);
  EXPECT_EQ(window("qwen3", "Qwen3ForCausalLM", {{"sliding_window", 2048}}), std::nullopt);
}

// Case tpl-08.
TEST(ModelConfigTest, EndTokens) {
  const auto ids = [](const char* generation) {
    const auto config = ParseHfConfig(Llama().dump(), generation);
    EXPECT_TRUE(config.ok()) << config.status();
    return config->eos_ids;
  };
  EXPECT_THAT(ids(R"({"eos_token_id":[7,9]})"), ElementsAre(7, 9));
  EXPECT_THAT(ids(R"({"eos_token_id":7})"), ElementsAre(7));
  EXPECT_THAT(ids("{}"), ElementsAre(2));
  EXPECT_THAT(ids(""), ElementsAre(2));
  const auto bad = ParseHfConfig(Llama().dump(), R"({"eos_token_id":[7,100]})");
  EXPECT_EQ(bad.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(bad.status().message()), HasSubstr("100"));
}

TEST(ModelConfigTest, NumbersOutOfRangeAreNamed) {
  const std::vector<std::tuple<const char*, Json, const char*>> cases = {
      {"num_hidden_layers", 0, "layers"},
      {"num_hidden_layers", 1 << 30, "layers"},
      {"num_hidden_layers", "2", "num_hidden_layers"},
      {"num_attention_heads", 0, "heads"},
      {"num_attention_heads", -4, "heads"},
      {"num_key_value_heads", 3, "KV heads"},
      {"num_key_value_heads", 0, "KV heads"},
      {"head_dim", 63, "head size"},
      {"head_dim", 0, "head size"},
      {"hidden_size", 1e30, "hidden_size"},
      {"hidden_size", 65, "hidden_size"},
      {"vocab_size", 18446744073709551615ull, "vocab_size"},
      {"max_position_embeddings", 0, "context"},
      {"rms_norm_eps", -1, "epsilon"},
      {"rms_norm_eps", "1e-5", "rms_norm_eps"},
      {"rope_theta", 0, "theta"},
      {"bos_token_id", 100, "BOS"},
      {"tie_word_embeddings", 1, "tie_word_embeddings"},
  };
  for (const auto& [key, value, named] : cases) {
    Json json = Llama();
    json[key] = value;
    const auto config = ParseHfConfig(json.dump());
    EXPECT_EQ(config.status().code(), absl::StatusCode::kInvalidArgument) << key << value;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(named));
  }
  EXPECT_FALSE(ParseHfConfig("").ok());
  EXPECT_FALSE(ParseHfConfig("[1]").ok());
}

TEST(ModelConfigTest, WhatIsNotSupportedIsNamed) {
  const std::vector<std::tuple<const char*, Json, const char*>> cases = {
      {"model_type", "gpt_neox", "gpt_neox"},
      {"architectures", {"LlamaForSequenceClassification"}, "LlamaForSequenceClassification"},
      {"hidden_act", "gelu", "gelu"},
      {"mlp_bias", true, "mlp_bias"},
      {"num_local_experts", 8, "experts"},
      {"rope_scaling", {{"rope_type", "yarn"}, {"factor", 4.0}}, "yarn"},
      {"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}, "dynamic"},
      {"rope_interleaved", true, "rope_interleaved"},
      {"partial_rotary_factor", 0.5, "partial_rotary_factor"},
      {"quantization_config", {{"quant_method", "gptq"}}, "gptq"},
  };
  for (const auto& [key, value, named] : cases) {
    Json json = Llama();
    json[key] = value;
    const auto config = ParseHfConfig(json.dump());
    EXPECT_EQ(config.status().code(), absl::StatusCode::kUnimplemented) << key << value;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(named));
  }
}

}  // namespace
}  // namespace baton
