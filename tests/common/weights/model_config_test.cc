#include "common/weights/model_config.h"

#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/test_data.h"

namespace baton {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
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
      EXPECT_THAT(std::string(config.status().message()),
                  AllOf(HasSubstr("mixture of experts"), HasSubstr("num_experts")));
      continue;
    }
    const Json file = Json::parse(ReadFileOrEmpty(dir + name + ".json"));
    EXPECT_EQ(file.contains("head_dim"), row["head_dim_in_file"].get<bool>()) << name;
    EXPECT_EQ(file.contains("rope_theta"), row["rope_theta_in_file"].get<bool>()) << name;
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
    EXPECT_EQ(config->rope.scaling == RopeConfig::Scaling::kNone, row["rope_scaling"].is_null());
    EXPECT_EQ(config->sliding_window.has_value(), row["sliding_window_active"].get<bool>()) << name;
    EXPECT_EQ(config->WindowOf(config->layers - 1), config->sliding_window.value_or(0)) << name;
    EXPECT_THAT(config->warnings, IsEmpty()) << name;
    EXPECT_EQ(2 * 2 * config->layers * config->kv_heads * config->head_dim,
              row["kv_bytes_per_token_fp16"].get<int64_t>())
        << name;
    int64_t parameters = 0;
    for (const auto& [tensor, shape] : ExpectedTensors(*config)) {
      parameters += shape.size() == 1 ? shape[0] : shape[0] * shape[1];
    }
    EXPECT_EQ(parameters, row["parameters"].get<int64_t>()) << name;
    EXPECT_TRUE(CheckRunnable(*config).ok()) << name;
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

absl::StatusOr<ModelConfig> Family(const std::string& type, const Json& extra) {
  Json json = Llama();
  json["num_hidden_layers"] = 4;
  json["model_type"] = type;
  json["architectures"] = {type == "llama"     ? "LlamaForCausalLM"
                           : type == "mistral" ? "MistralForCausalLM"
                           : type == "qwen2"   ? "Qwen2ForCausalLM"
                                               : "Qwen3ForCausalLM"};
  json.update(extra);
  return ParseHfConfig(json.dump());
}

// Windows of the four layers; empty for an error.
std::vector<int64_t> Plan(const std::string& type, const Json& extra) {
  const auto config = Family(type, extra);
  EXPECT_TRUE(config.ok()) << config.status();
  std::vector<int64_t> windows;
  for (int64_t i = 0; config.ok() && i < config->layers; ++i)
    windows.push_back(config->WindowOf(i));
  return windows;
}

// Case cfg-03 and its kind: given but off, null, absent, on in some layers.
TEST(ModelConfigTest, SlidingWindowPlan) {
  const auto everything = ElementsAre(0, 0, 0, 0);
  EXPECT_THAT(
      Plan("qwen2",
           {{"sliding_window", 131072}, {"use_sliding_window", false}, {"max_window_layers", 28}}),
      everything);
  EXPECT_THAT(Plan("mistral", {{"sliding_window", nullptr}}), everything);
  EXPECT_THAT(Plan("mistral", Json::object()), everything);
  EXPECT_THAT(Plan("qwen3", {{"sliding_window", 2048}}), everything);
  EXPECT_THAT(Plan("llama", {{"sliding_window", 2048}}), everything);

  EXPECT_THAT(Plan("mistral", {{"sliding_window", 4096}}), ElementsAre(4096, 4096, 4096, 4096));
  const Json on = {{"sliding_window", 64}, {"use_sliding_window", true}};
  const auto with = [&](Json extra) {
    extra.update(on);
    return extra;
  };
  // Transformers' default for max_window_layers is 28.
  EXPECT_THAT(Plan("qwen2", on), everything);
  EXPECT_THAT(Plan("qwen2", with({{"max_window_layers", 0}})), ElementsAre(64, 64, 64, 64));
  EXPECT_THAT(Plan("qwen3", with({{"max_window_layers", 3}})), ElementsAre(0, 0, 0, 64));
  EXPECT_THAT(Plan("qwen3", {{"sliding_window", nullptr}, {"use_sliding_window", true}}),
              everything);
  const char* full = "full_attention";
  const char* sliding = "sliding_attention";
  // layer_types is Transformers 5's last word.
  EXPECT_THAT(Plan("qwen3", with({{"layer_types", {sliding, full, sliding, full}}})),
              ElementsAre(64, 0, 64, 0));
  EXPECT_THAT(Plan("llama", {{"layer_types", {full, full, full, full}}}), everything);
}

// One warning, naming the key and the value, when nothing uses a declared window; none when the
// file itself says that it is off.
TEST(ModelConfigTest, AnUnusedWindowIsWarnedOf) {
  const auto warnings = [](const std::string& type, const Json& extra) {
    const auto config = Family(type, extra);
    EXPECT_TRUE(config.ok()) << config.status();
    return config->warnings;
  };
  const auto one = ElementsAre(AllOf(HasSubstr("'sliding_window' 2048"), HasSubstr("not used")));
  EXPECT_THAT(warnings("qwen3", {{"sliding_window", 2048}}), one);
  EXPECT_THAT(warnings("qwen2", {{"sliding_window", 2048}, {"use_sliding_window", true}}), one);
  EXPECT_THAT(warnings("llama", {{"sliding_window", 2048}}), one);
  EXPECT_THAT(warnings("qwen2", {{"sliding_window", 2048}, {"use_sliding_window", false}}),
              IsEmpty());
  EXPECT_THAT(warnings("mistral", {{"sliding_window", 2048}}), IsEmpty());
  EXPECT_THAT(warnings("mistral", {{"sliding_window", nullptr}}), IsEmpty());
}

TEST(ModelConfigTest, ContradictingWindowsAreRefused) {
  const char* full = "full_attention";
  const char* sliding = "sliding_attention";
  const auto refused = [](const std::string& type, const Json& extra, const char* named) {
    const auto config = Family(type, extra);
    EXPECT_FALSE(config.ok()) << extra;
    EXPECT_THAT(std::string(config.status().message()), HasSubstr(named));
  };
  refused("qwen2", {{"layer_types", {full, full, full, sliding}}, {"sliding_window", 64}},
          "layer_types");
  refused("llama", {{"layer_types", {full, full, full, sliding}}}, "layer_types");
  refused("mistral", {{"layer_types", {full, full, full, sliding}}, {"sliding_window", 64}},
          "layer_types");
  refused("qwen3", {{"layer_types", {full, full, full}}}, "layer_types");
  refused("qwen3", {{"layer_types", full}}, "layer_types");
  refused("qwen3", {{"layer_types", {full, full, "chunked_attention", full}}}, "chunked_attention");
  refused("qwen3", {{"use_sliding_window", true}}, "sliding_window");
  refused("qwen3", {{"use_sliding_window", "yes"}}, "use_sliding_window");
  for (const Json& bad : {Json(0), Json(-1), Json("4096"), Json(4096.5), Json(int64_t{1} << 40)}) {
    refused("mistral", {{"sliding_window", bad}}, "sliding");
  }
  refused("qwen3", {{"sliding_window", 4}, {"use_sliding_window", true}, {"max_window_layers", -1}},
          "max_window_layers");
  // Nothing is sized by a number that was not checked.
  refused("mistral", {{"sliding_window", 64}, {"num_hidden_layers", int64_t{1} << 61}}, "layers");
}

TEST(ModelConfigTest, ThePlanInWords) {
  EXPECT_THAT(Describe(*Family("mistral", {{"sliding_window", 4096}})),
              AllOf(HasSubstr("mistral, 4 layers"), HasSubstr("layers 0-3 see a window of 4096")));
  EXPECT_THAT(Describe(*Family("qwen2", {{"sliding_window", 64},
                                         {"use_sliding_window", true},
                                         {"max_window_layers", 3}})),
              AllOf(HasSubstr("layers 0-2 see everything, 3 see a window of 64 tokens"),
                    HasSubstr("biases on q, k, v")));
  EXPECT_THAT(
      Describe(*Family(
          "qwen3",
          {{"rope_scaling",
            {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}}}})),
      AllOf(HasSubstr("all 4 layers see everything"), HasSubstr("YaRN, from 128 tokens"),
            HasSubstr("norms on q, k")));
}

// Only families whose Transformers class has the switch read it.
TEST(ModelConfigTest, AttentionBias) {
  for (const char* type : {"llama", "qwen3"}) {
    const auto config = Family(type, {{"attention_bias", true}});
    EXPECT_TRUE(config->attention_bias && config->qkv_bias) << type;
  }
  EXPECT_FALSE(Family("mistral", {{"attention_bias", true}})->qkv_bias);
  EXPECT_TRUE(Family("qwen2", {{"attention_bias", true}})->qkv_bias);
  EXPECT_FALSE(Family("qwen2", {{"attention_bias", true}})->attention_bias);
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
  EXPECT_THAT(ids(R"({"eos_token_id":null})"), ElementsAre(2));
  // A model without any end token stops at max_tokens.
  Json none = Llama();
  none.erase("eos_token_id");
  EXPECT_THAT(ParseHfConfig(none.dump())->eos_ids, IsEmpty());
  Json listed = Llama();
  listed["eos_token_id"] = {3, 4};
  EXPECT_THAT(ParseHfConfig(listed.dump())->eos_ids, ElementsAre(3, 4));
  for (const char* generation :
       {R"({"eos_token_id":[7,100]})", R"({"eos_token_id":100})", R"({"eos_token_id":-1})",
        R"({"eos_token_id":"7"})", R"({"eos_token_id":[[7]]})", R"({"eos_token_id":7.5})",
        R"({"eos_token_id":4294967298})", R"({"eos_token_id":[true]})", "[7]", "{"}) {
    const auto bad = ParseHfConfig(Llama().dump(), generation);
    EXPECT_EQ(bad.status().code(), absl::StatusCode::kInvalidArgument) << generation;
    EXPECT_THAT(std::string(bad.status().message()),
                ::testing::AnyOf(HasSubstr("eos_token_id"), HasSubstr("EOS id is 100"),
                                 HasSubstr("generation_config.json")));
  }
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
      {"rope_scaling", "linear", "rope_scaling"},
      {"rope_scaling", {{"type", "linear"}}, "factor"},
      {"rope_scaling", {{"type", "linear"}, {"factor", 0.5}}, "factor"},
      {"rope_scaling", {{"type", "yarn"}, {"factor", 0.5}}, "factor"},
      {"rope_scaling", {{"type", "yarn"}, {"factor", "4"}}, "factor"},
      {"rope_scaling", {{"type", "yarn"}, {"factor", 4}, {"beta_fast", 0.5}}, "beta_fast"},
      {"rope_scaling", {{"type", "yarn"}, {"factor", 4}, {"beta_slow", -1}}, "beta_slow"},
      {"rope_scaling", {{"type", "yarn"}, {"factor", 4}, {"attention_factor", 0}}, "attention_f"},
      {"rope_scaling", {{"type", "yarn"}, {"factor", 4}, {"truncate", 1}}, "truncate"},
      {"rope_scaling",
       {{"type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 0}},
       "original_max_position_embeddings"},
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
      {"n_routed_experts", 8, "experts"},
      {"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}, "dynamic"},
      {"rope_scaling", {{"rope_type", "longrope"}, {"factor", 2.0}}, "longrope"},
      {"rope_scaling", {{"type", "mrope"}}, "mrope"},
      {"rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}, "full_attention"},
      {"rope_parameters", {{"rope_theta", 1e4}, {"partial_rotary_factor", 0.5}}, "partial_rotary"},
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
