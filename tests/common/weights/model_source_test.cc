#include "common/weights/model_source.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/common/weights/weights_files.h"
#include "tests/support/test_data.h"

namespace baton {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Json = nlohmann::json;

// A Llama of 2 layers, 4 heads of 4, 2 KV heads, whose values differ everywhere.
class ModelSourceTest : public ::testing::Test {
 protected:
  ModelSourceTest() {
    json_ = {{"architectures", {"LlamaForCausalLM"}},
             {"model_type", "llama"},
             {"num_hidden_layers", 2},
             {"hidden_size", 16},
             {"num_attention_heads", 4},
             {"num_key_value_heads", 2},
             {"intermediate_size", 24},
             {"vocab_size", 10},
             {"max_position_embeddings", 64},
             {"rms_norm_eps", 1e-5},
             {"eos_token_id", 2},
             {"tie_word_embeddings", true}};
    const auto config = ParseHfConfig(json_.dump());
    EXPECT_TRUE(config.ok()) << config.status();
    float start = 0;
    for (const auto& [name, shape] : ExpectedTensors(*config)) {
      tensors_[name] = Counting(shape, start += 1);
    }
  }

  absl::StatusOr<std::unique_ptr<ModelSource>> Open() {
    dir_.Write("config.json", json_.dump());
    dir_.Write("model.safetensors", SafetensorsBytes(tensors_));
    return ModelSource::Open(dir_.path());
  }

  std::string Error() {
    const auto source = Open();
    EXPECT_FALSE(source.ok());
    return std::string(source.status().message());
  }

  // As llama.cpp's converter orders the rows of Q and K.
  static F32Tensor Permuted(const F32Tensor& tensor, int64_t head_dim) {
    F32Tensor out = tensor;
    const int64_t columns = tensor.shape.size() > 1 ? tensor.shape[1] : 1;
    for (int64_t row = 0; row < tensor.shape[0]; ++row) {
      const int64_t head = row / head_dim;
      const int64_t half = row % head_dim / (head_dim / 2);
      const int64_t i = row % (head_dim / 2);
      const int64_t to = head * head_dim + 2 * i + half;
      std::copy_n(tensor.values.begin() + row * columns, columns,
                  out.values.begin() + to * columns);
    }
    return out;
  }

  std::string GgufBytes(bool biases = false, const std::map<std::string, std::string>& texts = {}) {
    GgufBuilder gguf;
    for (const auto& [key, text] : texts) gguf.Text(key, text);
    gguf.Text("general.architecture", "llama");
    gguf.U32("llama.block_count", 2);
    gguf.U32("llama.context_length", 64);
    gguf.U32("llama.embedding_length", 16);
    gguf.U32("llama.feed_forward_length", 24);
    gguf.U32("llama.attention.head_count", 4);
    gguf.U32("llama.attention.head_count_kv", 2);
    gguf.F32("llama.attention.layer_norm_rms_epsilon", 1e-5f);
    gguf.U32("tokenizer.ggml.eos_token_id", 2);
    gguf.Tensor("token_embd.weight", tensors_["model.embed_tokens.weight"]);
    gguf.Tensor("output_norm.weight", tensors_["model.norm.weight"]);
    for (const char* layer : {"0", "1"}) {
      const std::string from = std::string("model.layers.") + layer + ".";
      const std::string to = std::string("blk.") + layer + ".";
      const auto q = tensors_[from + "self_attn.q_proj.weight"];
      const auto k = tensors_[from + "self_attn.k_proj.weight"];
      gguf.Tensor(to + "attn_q.weight", Permuted(q, 4));
      gguf.Tensor(to + "attn_k.weight", Permuted(k, 4));
      if (biases) {
        gguf.Tensor(to + "attn_q.bias", Permuted(tensors_[from + "self_attn.q_proj.bias"], 4));
        gguf.Tensor(to + "attn_k.bias", Permuted(tensors_[from + "self_attn.k_proj.bias"], 4));
        gguf.Tensor(to + "attn_v.bias", tensors_[from + "self_attn.v_proj.bias"]);
      }
      gguf.Tensor(to + "attn_v.weight", tensors_[from + "self_attn.v_proj.weight"]);
      gguf.Tensor(to + "attn_output.weight", tensors_[from + "self_attn.o_proj.weight"]);
      gguf.Tensor(to + "attn_norm.weight", tensors_[from + "input_layernorm.weight"]);
      gguf.Tensor(to + "ffn_norm.weight", tensors_[from + "post_attention_layernorm.weight"]);
      gguf.Tensor(to + "ffn_gate.weight", tensors_[from + "mlp.gate_proj.weight"]);
      gguf.Tensor(to + "ffn_up.weight", tensors_[from + "mlp.up_proj.weight"]);
      gguf.Tensor(to + "ffn_down.weight", tensors_[from + "mlp.down_proj.weight"]);
    }
    return gguf.Bytes();
  }

  void ExpectAllTensors(const ModelSource& source) {
    EXPECT_EQ(source.TensorNames().size(), tensors_.size());
    for (const auto& [name, tensor] : tensors_) {
      std::vector<float> values(tensor.values.size());
      const auto status = source.ReadTensorF32(name, tensor.shape, values.data());
      ASSERT_TRUE(status.ok()) << status;
      EXPECT_EQ(values, tensor.values) << name;
    }
  }

  TempDir dir_;
  Json json_;
  std::map<std::string, F32Tensor> tensors_;
};

TEST_F(ModelSourceTest, HuggingFaceFolder) {
  dir_.Write("tokenizer.json", "{}");
  dir_.Write("tokenizer_config.json", R"({"chat_template":"T"})");
  const auto source = Open();
  ASSERT_TRUE(source.ok()) << source.status();
  ExpectAllTensors(**source);
  EXPECT_EQ((*source)->format(), ModelSource::Format::kHuggingFace);
  EXPECT_EQ((*source)->tokenizer_json(), "{}");
  EXPECT_EQ((*source)->chat_template(), "T");
  EXPECT_THAT((*source)->chat_template_origin(), HasSubstr("tokenizer_config.json"));
  dir_.Write("chat_template.jinja", "J");
  EXPECT_EQ((*Open())->chat_template(), "J");
}

// Case tpl-06: of several named templates the default is taken; without one there is none, and the
// model serves plain completions all the same.
TEST_F(ModelSourceTest, NamedChatTemplates) {
  dir_.Write("tokenizer.json", "{}");
  dir_.Write("tokenizer_config.json", R"({"chat_template":[{"name":"tool_use","template":"U"},
                                          {"name":"default","template":"D"}]})");
  auto source = Open();
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->chat_template(), "D");
  EXPECT_THAT((*source)->chat_template_origin(), HasSubstr("the default of 2 named"));
  dir_.Write("tokenizer_config.json", R"({"chat_template":[{"name":"tool_use","template":"U"}]})");
  source = Open();
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->chat_template(), std::nullopt);
  for (const char* bad : {R"({"chat_template":5})", R"({"chat_template":{"default":"D"}})"}) {
    dir_.Write("tokenizer_config.json", bad);
    EXPECT_THAT(std::string(Open().status().message()), HasSubstr("'chat_template'"));
  }
  dir_.Write("model.gguf", GgufBytes(false, {{"tokenizer.chat_template", "D"},
                                             {"tokenizer.chat_template.tool_use", "U"}}));
  source = ModelSource::Open(dir_.File("model.gguf"));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->chat_template(), "D");
  EXPECT_THAT((*source)->chat_template_origin(), HasSubstr("tokenizer.chat_template)"));
  dir_.Write("model.gguf", GgufBytes(false, {{"tokenizer.chat_template.tool_use", "U"}}));
  source = ModelSource::Open(dir_.File("model.gguf"));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ((*source)->chat_template(), std::nullopt);
}

// Rows of Q and K come out in Hugging Face order, whatever the file's order.
TEST_F(ModelSourceTest, GgufGivesTheSameTensors) {
  dir_.Write("model.gguf", GgufBytes());
  const auto source = ModelSource::Open(dir_.File("model.gguf"));
  ASSERT_TRUE(source.ok()) << source.status();
  ExpectAllTensors(**source);
  EXPECT_TRUE((*source)->config().tie_embeddings);
  EXPECT_TRUE((*source)->GetTensor("model.layers.1.self_attn.k_proj.weight")->rope_permuted);
  EXPECT_FALSE((*source)->GetTensor("model.layers.1.self_attn.v_proj.weight")->rope_permuted);
  EXPECT_EQ((*source)->chat_template(), std::nullopt);

  const F32Tensor& q = tensors_["model.layers.0.self_attn.q_proj.weight"];
  std::vector<float> rows(3 * 16);
  ASSERT_TRUE(
      (*source)->ReadRowsF32("model.layers.0.self_attn.q_proj.weight", 5, 3, rows.data()).ok());
  EXPECT_EQ(rows, std::vector<float>(q.values.begin() + 5 * 16, q.values.begin() + 8 * 16));
  EXPECT_EQ(
      (*source)->ReadRowsF32("model.layers.0.self_attn.q_proj.weight", 15, 3, rows.data()).code(),
      absl::StatusCode::kOutOfRange);
}

// Biases of Q and K are permuted like the rows they belong to.
TEST_F(ModelSourceTest, GgufBiases) {
  for (const char* layer : {"0", "1"}) {
    const std::string prefix = std::string("model.layers.") + layer + ".self_attn.";
    tensors_[prefix + "q_proj.bias"] = Counting({16}, 50);
    tensors_[prefix + "k_proj.bias"] = Counting({8}, 60);
    tensors_[prefix + "v_proj.bias"] = Counting({8}, 70);
  }
  dir_.Write("model.gguf", GgufBytes(/*biases=*/true));
  const auto source = ModelSource::Open(dir_.File("model.gguf"));
  ASSERT_TRUE(source.ok()) << source.status();
  ExpectAllTensors(**source);
}

TEST_F(ModelSourceTest, CutGgufIsRefused) {
  const std::string whole = GgufBytes();
  for (size_t n = 0; n < whole.size(); n += 97) {
    dir_.Write("cut.gguf", whole.substr(0, n));
    EXPECT_FALSE(ModelSource::Open(dir_.File("cut.gguf")).ok()) << n;
  }
}

TEST_F(ModelSourceTest, WrongShapeNamesEverything) {
  tensors_["model.layers.1.mlp.up_proj.weight"] = Counting({24, 15}, 0);
  EXPECT_THAT(Error(), AllOf(HasSubstr(dir_.path()), HasSubstr("model.layers.1.mlp.up_proj.weight"),
                             HasSubstr("[24, 15]"), HasSubstr("[24, 16]")));
}

TEST_F(ModelSourceTest, MissingAndLeftOverTensorsAreListed) {
  tensors_.erase("model.norm.weight");
  tensors_.erase("model.layers.0.mlp.up_proj.weight");
  EXPECT_THAT(Error(), AllOf(HasSubstr("model.norm.weight"),
                             HasSubstr("model.layers.0.mlp.up_proj.weight")));
  tensors_["model.norm.weight"] = Counting({16}, 0);
  tensors_["model.layers.0.mlp.up_proj.weight"] = Counting({24, 16}, 0);
  tensors_["model.layers.0.self_attn.q_proj.bias"] = Counting({16}, 0);
  EXPECT_THAT(Error(), HasSubstr("model.layers.0.self_attn.q_proj.bias"));
}

TEST_F(ModelSourceTest, ReadsOnlyTheExpectedShape) {
  const auto source = Open();
  std::vector<float> values(1000);
  const auto status = (*source)->ReadTensorF32("model.norm.weight", {17}, values.data());
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("model.norm.weight"), HasSubstr("[16]"), HasSubstr("[17]")));
  EXPECT_EQ((*source)->GetTensor("lm_head.weight").status().code(), absl::StatusCode::kNotFound);
}

// Case ldr-03.
TEST_F(ModelSourceTest, TiedHead) {
  EXPECT_TRUE(Open().ok());
  tensors_["lm_head.weight"] = tensors_["model.embed_tokens.weight"];
  const auto equal = Open();
  ASSERT_TRUE(equal.ok()) << equal.status();
  EXPECT_FALSE((*equal)->HasTensor("lm_head.weight"));  // one copy
  const std::string digest = (*equal)->WeightsDigest();
  tensors_.erase("lm_head.weight");
  EXPECT_EQ((*Open())->WeightsDigest(), digest);  // the same weights
  tensors_["lm_head.weight"] = tensors_["model.embed_tokens.weight"];
  tensors_["lm_head.weight"].values[7] += 1;
  EXPECT_THAT(Error(), AllOf(HasSubstr("tie_word_embeddings"), HasSubstr("lm_head.weight")));
  json_["tie_word_embeddings"] = false;
  EXPECT_TRUE((*Open())->HasTensor("lm_head.weight"));
  tensors_.erase("lm_head.weight");
  EXPECT_THAT(Error(), HasSubstr("lm_head.weight"));
}

// Case ldr-01.
TEST_F(ModelSourceTest, Shards) {
  std::map<std::string, F32Tensor> parts[3];
  Json map = Json::object();
  size_t i = 0;
  for (const auto& [name, tensor] : tensors_) {
    const size_t part = i++ % 3;
    parts[part][name] = tensor;
    map[name] = "model-" + std::to_string(part) + ".safetensors";
  }
  dir_.Write("config.json", json_.dump());
  for (size_t part = 0; part < 3; ++part) {
    dir_.Write("model-" + std::to_string(part) + ".safetensors", SafetensorsBytes(parts[part]));
  }
  const auto index = [&](const Json& weight_map) {
    dir_.Write("model.safetensors.index.json", Json({{"weight_map", weight_map}}).dump());
    return ModelSource::Open(dir_.path());
  };
  dir_.Write("model.safetensors", "a stray file that is not read");
  const auto source = index(map);
  ASSERT_TRUE(source.ok()) << source.status();
  ExpectAllTensors(**source);

  Json wrong = map;
  wrong["model.norm.weight"] = map["model.norm.weight"] == "model-0.safetensors"
                                   ? "model-1.safetensors"
                                   : "model-0.safetensors";
  EXPECT_THAT(std::string(index(wrong).status().message()), HasSubstr("model.norm.weight"));
  for (const char* name : {"../model-0.safetensors", "/etc/passwd", "..", ""}) {
    wrong["model.norm.weight"] = name;
    EXPECT_THAT(std::string(index(wrong).status().message()),
                AllOf(HasSubstr("model.norm.weight"), HasSubstr("not the name of a file")));
  }
  // An interrupted copy: one file is there, one is cut short, one is not there, and the index names
  // tensors that are nowhere. The error has all of it.
  const std::string second = dir_.File("model-1.safetensors");
  std::filesystem::resize_file(second, std::filesystem::file_size(second) - 4);
  std::filesystem::remove(dir_.File("model-2.safetensors"));
  Json more = map;
  more["extra.one"] = more["extra.two"] = "model-0.safetensors";
  more["extra.three"] = "model-3.safetensors";
  const absl::Status status = index(more).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("model-1.safetensors: tensor"), HasSubstr("file model-2.safetensors"),
                    HasSubstr("file model-3.safetensors"),
                    HasSubstr("tensor extra.one of model-0.safetensors"),
                    HasSubstr("tensor extra.two of model-0.safetensors"),
                    Not(HasSubstr("file model-0")), Not(HasSubstr("file model-1"))));
  std::filesystem::remove(second);
  EXPECT_THAT(std::string(index(map).status().message()),
              AllOf(HasSubstr("model-1.safetensors"), HasSubstr("model-2.safetensors"),
                    Not(HasSubstr("model-0"))));
}

TEST_F(ModelSourceTest, DigestIsOfContents) {
  const std::string digest = (*Open())->WeightsDigest();
  EXPECT_EQ(digest.size(), 32u);
  json_["max_position_embeddings"] = 32;
  EXPECT_EQ((*Open())->WeightsDigest(1), digest);
  tensors_["model.layers.1.mlp.up_proj.weight"].values[100] += 1;
  EXPECT_NE((*Open())->WeightsDigest(), digest);
}

TEST_F(ModelSourceTest, OtherArchitecturesAreRefusedByName) {
  json_["model_type"] = "mixtral";
  json_["architectures"] = {"MixtralForCausalLM"};
  EXPECT_THAT(Error(), HasSubstr("Mixtral"));
  EXPECT_EQ(ModelSource::Open("/nonexistent").status().code(), absl::StatusCode::kNotFound);
}

TEST(SmolLm2SourceTest, TheRealModel) {
  const std::string path = SmolLm2GgufPath();
  BATON_SKIP_WITHOUT(path);
  const auto source = ModelSource::Open(path);
  ASSERT_TRUE(source.ok()) << source.status();
  const ModelConfig& config = (*source)->config();
  const auto expected =
      ParseHfConfig(ReadFileOrEmpty(SharedDataDir() + "/configs/smollm2-135m-instruct.json"));
  if (expected.ok()) {
    ModelConfig rounded = config;
    EXPECT_NEAR(config.rms_eps, 1e-5, 1e-11);  // the file stores it in fp32
    rounded.rms_eps = expected->rms_eps;
    EXPECT_EQ(rounded, *expected);
  }
  EXPECT_EQ(config.layers, 30);
  EXPECT_EQ((*source)->TensorNames().size(), 272u);
  EXPECT_TRUE((*source)->chat_template().has_value());
  std::vector<float> norm(576);
  ASSERT_TRUE((*source)->ReadTensorF32("model.norm.weight", {576}, norm.data()).ok());
  EXPECT_EQ((*source)->WeightsDigest(2), (*ModelSource::Open(path))->WeightsDigest(1));
}

}  // namespace
}  // namespace baton
