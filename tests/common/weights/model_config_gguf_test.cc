// What GGUF metadata says about a model: the keys of each architecture, RoPE scaling and windows.
#include <cstring>

#include "common/weights/gguf.h"
#include "common/weights/model_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/weights/weights_files.h"

namespace baton {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Metadata of a model of 4 layers with heads of 128, to which tests add.
class GgufConfigTest : public ::testing::Test {
 protected:
  GgufConfigTest() { Start("llama"); }

  void Start(const std::string& architecture) {
    gguf_ = GgufBuilder();
    arch_ = architecture + ".";
    gguf_.Text("general.architecture", architecture);
    gguf_.U32(arch_ + "block_count", 4);
    gguf_.U32(arch_ + "context_length", 32768);
    gguf_.U32(arch_ + "embedding_length", 512);
    gguf_.U32(arch_ + "feed_forward_length", 1024);
    gguf_.U32(arch_ + "attention.head_count", 4);
    gguf_.U32(arch_ + "attention.head_count_kv", 2);
    gguf_.U32(arch_ + "vocab_size", 100);
    gguf_.F32(arch_ + "attention.layer_norm_rms_epsilon", 1e-5f);
    gguf_.F32(arch_ + "rope.freq_base", 1e6f);
  }

  absl::StatusOr<ModelConfig> Parse() {
    dir_.Write("m.gguf", gguf_.Bytes());
    const auto file = GgufFile::Open(dir_.File("m.gguf"));
    if (!file.ok()) return file.status();
    return ParseGgufConfig(**file);
  }

  void ExpectRefused(const char* named, absl::StatusCode code = absl::StatusCode::kUnimplemented) {
    const auto config = Parse();
    EXPECT_EQ(config.status().code(), code) << named;
    EXPECT_THAT(std::string(config.status().message()),
                AllOf(HasSubstr(named), HasSubstr(dir_.path())));
  }

  // The same model's config.json with this rope_scaling.
  static ModelConfig HuggingFace(const nlohmann::json& scaling) {
    const nlohmann::json json = {
        {"model_type", "llama"},    {"num_hidden_layers", 4},           {"hidden_size", 512},
        {"num_attention_heads", 4}, {"num_key_value_heads", 2},         {"intermediate_size", 1024},
        {"vocab_size", 100},        {"max_position_embeddings", 32768}, {"rms_norm_eps", 1e-5},
        {"rope_theta", 1e6},        {"rope_scaling", scaling}};
    const auto config = ParseHfConfig(json.dump());
    EXPECT_TRUE(config.ok()) << config.status();
    return *config;
  }

  void ExpectRopeOf(const nlohmann::json& scaling) {
    const auto config = Parse();
    ASSERT_TRUE(config.ok()) << config.status();
    const ModelConfig want = HuggingFace(scaling);
    EXPECT_EQ(RopeInverseFrequencies(*config), RopeInverseFrequencies(want)) << scaling;
    EXPECT_NEAR(config->rope.attention_factor, want.rope.attention_factor, 1e-6) << scaling;
    EXPECT_EQ(config->max_context, want.max_context) << scaling;
  }

  TempDir dir_;
  GgufBuilder gguf_;
  std::string arch_;
};

TEST_F(GgufConfigTest, Yarn) {
  gguf_.Text("llama.rope.scaling.type", "yarn");
  gguf_.F32("llama.rope.scaling.factor", 4.0f);
  gguf_.U32("llama.rope.scaling.original_context_length", 32768);
  ExpectRopeOf({{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}});
  gguf_.F32("llama.rope.scaling.yarn_beta_fast", 16.0f);
  gguf_.F32("llama.rope.scaling.yarn_beta_slow", 2.0f);
  gguf_.F32("llama.rope.scaling.yarn_ext_factor", 1.0f);
  gguf_.F32("llama.rope.scaling.yarn_log_multiplier", 0.0f);
  // llama.cpp multiplies it with the paper's own factor, 0.1 ln 4 + 1.
  gguf_.F32("llama.rope.scaling.attn_factor", 0.5f);
  ExpectRopeOf({{"type", "yarn"},
                {"factor", 4.0},
                {"original_max_position_embeddings", 32768},
                {"beta_fast", 16},
                {"beta_slow", 2},
                {"attention_factor", 0.5 * 1.1386294361119891}});
  gguf_.F32("llama.rope.scaling.yarn_attn_factor", 0.9f);
  ExpectRefused("yarn_attn_factor");
}

TEST_F(GgufConfigTest, YarnThatWeDoNotHave) {
  for (const char* key : {"yarn_log_multiplier", "yarn_ext_factor"}) {
    Start("qwen2");
    gguf_.Text("qwen2.rope.scaling.type", "yarn");
    gguf_.F32("qwen2.rope.scaling.factor", 4.0f);
    gguf_.F32(std::string("qwen2.rope.scaling.") + key, 0.25f);
    ExpectRefused(key);
  }
  Start("llama");
  gguf_.Text("llama.rope.scaling.type", "yarn");
  gguf_.F32("llama.rope.scaling.factor", 0.25f);
  ExpectRefused("factor", absl::StatusCode::kInvalidArgument);
}

// As llama.cpp reads it: a factor alone is linear, also by its old name; 0 and 1 are none.
TEST_F(GgufConfigTest, LinearScaling) {
  const nlohmann::json linear = {{"type", "linear"}, {"factor", 4.0}};
  gguf_.Text("llama.rope.scaling.type", "linear");
  gguf_.F32("llama.rope.scaling.factor", 4.0f);
  ExpectRopeOf(linear);
  for (const char* key : {"llama.rope.scaling.factor", "llama.rope.scale_linear"}) {
    Start("llama");
    gguf_.F32(key, 4.0f);
    ExpectRopeOf(linear);
    Start("llama");
    gguf_.F32(key, 0.0f);
    ExpectRopeOf(nullptr);
  }
  Start("llama");
  gguf_.Text("llama.rope.scaling.type", "none");
  gguf_.F32("llama.rope.scaling.factor", 4.0f);
  ExpectRopeOf(nullptr);
}

// GGUF stores llama3 scaling as a divisor for each frequency.
TEST_F(GgufConfigTest, FactorsOfFrequencies) {
  const nlohmann::json llama3 = {{"rope_type", "llama3"},
                                 {"factor", 8.0},
                                 {"low_freq_factor", 1.0},
                                 {"high_freq_factor", 4.0},
                                 {"original_max_position_embeddings", 8192}};
  const auto want = RopeInverseFrequencies(HuggingFace(llama3));
  const auto plain = RopeInverseFrequencies(HuggingFace(nullptr));
  F32Tensor factors = Counting({64}, 0);
  for (size_t i = 0; i < 64; ++i) factors.values[i] = plain[i] / want[i];
  gguf_.Tensor("rope_freqs.weight", factors);
  const auto config = Parse();
  ASSERT_TRUE(config.ok()) << config.status();
  const auto got = RopeInverseFrequencies(*config);
  for (size_t i = 0; i < 64; ++i) EXPECT_NEAR(double{got[i]} / want[i], 1.0, 2.4e-7) << i;
  gguf_.F32("llama.rope.scaling.factor", 4.0f);
  ExpectRefused("rope_freqs.weight");
}

TEST_F(GgufConfigTest, RopeTypesWithoutSupportAreNamed) {
  gguf_.Text("llama.rope.scaling.type", "longrope");
  ExpectRefused("longrope");
}

// Mistral is stored as llama; its window is in every layer.
TEST_F(GgufConfigTest, SlidingWindow) {
  EXPECT_EQ(Parse()->sliding_window, std::nullopt);
  gguf_.U32("llama.attention.sliding_window", 4096);
  const auto config = Parse();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->sliding_window, 4096);
  EXPECT_THAT(config->windowed_layers, ElementsAre(true, true, true, true));
  Start("llama");
  gguf_.U32("llama.attention.sliding_window", 0);
  EXPECT_EQ(Parse()->sliding_window, std::nullopt);
  Start("llama");
  gguf_.U32("llama.attention.sliding_window", 4294967295u);
  ExpectRefused("sliding window", absl::StatusCode::kInvalidArgument);
}

TEST_F(GgufConfigTest, SlidingWindowPattern) {
  Start("qwen3");
  gguf_.U32("qwen3.attention.sliding_window", 64);
  ExpectRefused("sliding_window_pattern");
  gguf_.Bools("qwen3.attention.sliding_window_pattern", {true, false, true, false});
  const auto config = Parse();
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->WindowOf(0), 64);
  EXPECT_EQ(config->WindowOf(1), 0);
  EXPECT_THAT(config->warnings, IsEmpty());

  Start("qwen3");
  gguf_.U32("qwen3.attention.sliding_window", 64);
  gguf_.Bools("qwen3.attention.sliding_window_pattern", {false, false, false, false});
  EXPECT_EQ(Parse()->sliding_window, std::nullopt);
  EXPECT_THAT(Parse()->warnings, ElementsAre(AllOf(HasSubstr("sliding_window"), HasSubstr("64"))));
  Start("qwen3");
  gguf_.U32("qwen3.attention.sliding_window", 64);
  gguf_.Bools("qwen3.attention.sliding_window_pattern", {true, false});
  ExpectRefused("sliding_window_pattern", absl::StatusCode::kInvalidArgument);
  Start("qwen3");
  gguf_.U32("qwen3.attention.sliding_window", 64);
  gguf_.U32("qwen3.attention.sliding_window_pattern", 6);
  ExpectRefused("sliding_window_pattern", absl::StatusCode::kInvalidArgument);
}

// A qwen2 file whose biases were lost is not taken for a model that has none.
TEST_F(GgufConfigTest, BiasesOfQwen2AreExpected) {
  EXPECT_FALSE(Parse()->qkv_bias);
  Start("qwen2");
  EXPECT_TRUE(Parse()->qkv_bias);
}

// Case tpl-08.
TEST_F(GgufConfigTest, EndTokens) {
  EXPECT_THAT(Parse()->eos_ids, IsEmpty());
  gguf_.U32("tokenizer.ggml.eos_token_id", 7);
  gguf_.U32("tokenizer.ggml.eot_token_id", 9);
  gguf_.U32("tokenizer.ggml.eom_token_id", 8);
  EXPECT_THAT(Parse()->eos_ids, ElementsAre(7, 9, 8));
  for (const char* key : {"eos_token_id", "eot_token_id", "eom_token_id", "bos_token_id"}) {
    Start("llama");
    gguf_.U32(std::string("tokenizer.ggml.") + key, 100);
    ExpectRefused(key, absl::StatusCode::kInvalidArgument);
  }
}

TEST_F(GgufConfigTest, WhatIsNotSupportedIsNamed) {
  for (const char* name : {"gemma3", "qwen3moe", "phi3", "mistral3"}) {
    Start(name);
    ExpectRefused(name);
  }
  Start("llama");
  gguf_.U32("llama.expert_count", 8);
  ExpectRefused("llama.expert_count");
  Start("llama");
  gguf_.U32("llama.rope.dimension_count", 64);
  ExpectRefused("64 of 128");
  // Nothing is sized by a number that was not checked.
  Start("llama");
  gguf_.U32("llama.attention.sliding_window", 64);
  gguf_.U32("llama.block_count", 4294967295u);
  EXPECT_FALSE(Parse().ok());
}

}  // namespace
}  // namespace baton
