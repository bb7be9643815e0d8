// SentencePiece models, .tiktoken files and GGUF vocabularies of those kinds.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include "common/tokenizer/detokenizer.h"
#include "common/tokenizer/tokenizer.h"
#include "common/weights/model_source.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/common/tokenizer/vectors.h"
#include "tests/support/sanitized.h"

namespace baton {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::json;

// A SentencePiece model file, field by field.
class ModelWriter {
 public:
  ModelWriter& Piece(const std::string& text, float score, int type) {
    std::string piece = Field(1, text);
    piece += '\x15';
    piece.append(reinterpret_cast<const char*>(&score), sizeof(score));
    piece += Number(3, type);
    bytes_ += Field(1, piece);
    return *this;
  }
  ModelWriter& Trainer(const std::string& fields) {
    bytes_ += Field(2, fields);
    return *this;
  }
  ModelWriter& Normalizer(const std::string& fields) {
    bytes_ += Field(3, fields);
    return *this;
  }
  const std::string& bytes() const { return bytes_; }

  static std::string Varint(uint64_t value) {
    std::string out;
    for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
    return out + static_cast<char>(value);
  }
  static std::string Number(int field, uint64_t value) {
    return Varint(static_cast<uint64_t>(field) << 3) + Varint(value);
  }
  static std::string Field(int field, const std::string& bytes) {
    return Varint(static_cast<uint64_t>(field) << 3 | 2) + Varint(bytes.size()) + bytes;
  }

 private:
  std::string bytes_;
};

std::string BpeTrainer() { return ModelWriter::Number(3, 2); }
// Identity, a dummy prefix, spaces kept.
std::string KeepSpaces() {
  return ModelWriter::Field(1, "identity") + ModelWriter::Number(3, 1) + ModelWriter::Number(4, 0);
}

ModelWriter SmallModel() {
  ModelWriter model;
  model.Piece("<unk>", 0, 2).Piece("<s>", 0, 3).Piece("</s>", 0, 3);
  for (int b = 0; b < 256; ++b) {
    char text[8];
    snprintf(text, sizeof(text), "<0x%02X>", b);
    model.Piece(text, 0, 6);
  }
  model.Piece("\u2581a", -1, 1);  // 259
  model.Piece("\u2581", -2, 1).Piece("a", -3, 1).Piece("b", -4, 1);
  model.Piece("[X]", 0, 4);  // 263
  return model;
}

std::string SmallModelBytes() {
  return SmallModel().Trainer(BpeTrainer()).Normalizer(KeepSpaces()).bytes();
}

absl::Status LoadStatus(const std::string& bytes) {
  return Tokenizer::FromVocabulary(bytes).status();
}

// The vocabulary of a loaded tokenizer as a GGUF file of model = llama has it.
struct LlamaGguf {
  std::vector<std::string> texts;
  GgufVocab vocab;
};

LlamaGguf ToGguf(const Tokenizer& tokenizer) {
  LlamaGguf gguf;
  const Json json = Json::parse(tokenizer.Serialize());
  gguf.texts.resize(static_cast<size_t>(tokenizer.vocab_size()));
  for (const auto& [text, id] : json["model"]["vocab"].items()) gguf.texts[id] = text;
  gguf.vocab.model = "llama";
  gguf.vocab.pre = "default";
  gguf.vocab.scores = json["baton"]["scores"].get<std::vector<float>>();
  for (const std::string& text : gguf.texts) {
    gguf.vocab.tokens.push_back(text);
    const bool byte = text.size() == 6 && text.starts_with("<0x");
    gguf.vocab.token_types.push_back(byte ? 6 : 1);
  }
  for (const auto& token : json["added_tokens"]) {
    gguf.vocab.token_types[token["id"]] = token["special"] == true ? 3 : 4;
  }
  gguf.vocab.token_types[0] = 2;
  return gguf;
}

class MistralTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = SharedTokenizer("mistral_v3.model");
    BATON_SKIP_WITHOUT(path);
    static const auto tokenizer = Tokenizer::FromVocabulary(ReadFileOrEmpty(path));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = tokenizer->get();
  }

  const Tokenizer* tokenizer_ = nullptr;
};

TEST_F(MistralTest, Vectors) {
  CheckTextVectors(*tokenizer_, "mistral_v3");
  CheckXquadVectors(*tokenizer_, "mistral_v3");
  EXPECT_EQ(tokenizer_->vocab_size(), 32768);
  EXPECT_EQ(tokenizer_->bos_id(), 1);
  EXPECT_EQ(tokenizer_->eos_id(), 2);
  EXPECT_TRUE(tokenizer_->adds_bos());
}

TEST_F(MistralTest, GgufFormIsTheSame) {
  LlamaGguf form = ToGguf(*tokenizer_);
  const auto gguf = Tokenizer::FromGguf(form.vocab);
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  CheckTextVectors(**gguf, "mistral_v3");
  CheckXquadVectors(**gguf, "mistral_v3");
  EXPECT_EQ((*gguf)->digest(), tokenizer_->digest());
  // A shipped copy is the same once more.
  const auto shipped = Tokenizer::FromJson((*gguf)->Serialize());
  ASSERT_TRUE(shipped.ok()) << shipped.status();
  EXPECT_EQ((*shipped)->digest(), tokenizer_->digest());
  EXPECT_EQ((*shipped)->adds_bos(), (*gguf)->adds_bos());
}

// Case cfg-05: add_bos_token for model = llama.
TEST_F(MistralTest, GgufBosRule) {
  LlamaGguf form = ToGguf(*tokenizer_);
  const auto hello = *tokenizer_->Encode("Hello");
  auto with_bos = hello;
  with_bos.insert(with_bos.begin(), 1);
  for (const std::optional<bool> flag : {std::optional<bool>(), std::optional<bool>(true)}) {
    form.vocab.add_bos = flag;
    const auto tokenizer = Tokenizer::FromGguf(form.vocab);
    EXPECT_EQ(*(*tokenizer)->Encode("Hello", {.add_bos = true}), with_bos);
    // Case tpl-02: two only where the user wrote one.
    auto twice = with_bos;
    twice.insert(twice.begin(), 1);
    EXPECT_EQ(*(*tokenizer)->Encode("<s>Hello", {.parse_special = true, .add_bos = true}), twice);
    EXPECT_EQ(*(*tokenizer)->Encode("<s>Hello", {.parse_special = true}), with_bos);
  }
  form.vocab.add_bos = false;
  EXPECT_EQ(*(*Tokenizer::FromGguf(form.vocab))->Encode("Hello", {.add_bos = true}), hello);
}

// The same vocabulary as converters to tokenizer.json write it. Merges there have an order among
// those of one score, which these texts don't show.
TEST_F(MistralTest, TokenizerJsonForm) {
  Json json = Json::parse(tokenizer_->Serialize());
  const auto scores = json["baton"]["scores"].get<std::vector<float>>();
  std::map<std::string, size_t> vocab = json["model"]["vocab"];
  struct Merge {
    float score;
    std::string left, right;
  };
  std::vector<Merge> merges;
  for (const auto& [text, id] : vocab) {
    if (tokenizer_->IsSpecial(static_cast<int32_t>(id))) continue;
    for (size_t at = 1; at < text.size(); ++at) {
      const auto left = vocab.find(text.substr(0, at));
      const auto right = vocab.find(text.substr(at));
      if (left == vocab.end() || right == vocab.end()) continue;
      merges.push_back({scores[id], left->first, right->first});
    }
  }
  std::stable_sort(merges.begin(), merges.end(), [](const Merge& a, const Merge& b) {
    if (a.score != b.score) return a.score > b.score;
    if (a.left.size() != b.left.size()) return a.left.size() > b.left.size();
    return a.right.size() > b.right.size();
  });
  json["model"]["merges"] = Json::array();
  for (const Merge& merge : merges) json["model"]["merges"].push_back({merge.left, merge.right});
  json.erase("baton");
  json["post_processor"] = {{"type", "TemplateProcessing"},
                            {"single",
                             {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
                              {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}}};
  const Json replace = {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};
  json["normalizer"] = {{"type", "Sequence"},
                        {"normalizers", {{{"type", "Prepend"}, {"prepend", "\u2581"}}, replace}}};
  json["pre_tokenizer"] = nullptr;
  const auto prepend = Tokenizer::FromJson(json.dump());
  ASSERT_TRUE(prepend.ok()) << prepend.status();
  CheckTextVectors(**prepend, "mistral_v3");
  CheckXquadVectors(**prepend, "mistral_v3");
  EXPECT_TRUE((*prepend)->adds_bos());
  EXPECT_EQ((*prepend)->bos_id(), 1);

  json["normalizer"] = nullptr;
  json["pre_tokenizer"] = {{"type", "Metaspace"},
                           {"replacement", "\u2581"},
                           {"prepend_scheme", "first"},
                           {"split", false}};
  const auto metaspace = Tokenizer::FromJson(json.dump());
  ASSERT_TRUE(metaspace.ok()) << metaspace.status();
  // Paragraphs that begin with a space get no second one; hashes of what `tokenizers` 0.23.3 gives.
  CheckXquadVectors(**metaspace, "mistral_v3",
                    {{"ar0", "1954c08d1872f9d48af50cb7e9490817"},
                     {"zh60", "c8176310315e159df5ffc878d045510c"},
                     {"zh72", "83bac0ccb25099a75e84e8c75a967282"}});
  // [INST] is id 3, [/INST] 4. A space in front of text that begins with one is not doubled.
  EXPECT_EQ(*(*metaspace)->Encode("[INST] hi[/INST]", {.parse_special = true}),
            (std::vector<int32_t>{3, 12782, 4}));
  EXPECT_EQ(*tokenizer_->Encode("[INST] hi[/INST]", {.parse_special = true}),
            (std::vector<int32_t>{3, 12782, 4}));
  // Text right after a special token gets its space.
  EXPECT_EQ(*tokenizer_->Encode("[INST]hi[/INST]", {.parse_special = true}),
            (std::vector<int32_t>{3, 12782, 4}));
}

// Cases str-04, str-05 and lp-02 for byte tokens.
TEST_F(MistralTest, BytesCombineToCharacters) {
  const auto id = [&](const char* text) { return *tokenizer_->TokenToId(text); };
  // A character that the vocabulary has no piece for.
  const std::string text = "x\U0001F9FF y";
  const auto ids = *tokenizer_->Encode(text);
  EXPECT_THAT(ids,
              ::testing::IsSupersetOf({id("<0xF0>"), id("<0x9F>"), id("<0xA7>"), id("<0xBF>")}));
  Detokenizer detokenizer(*tokenizer_);
  std::string joined;
  for (int32_t i : ids) {
    const std::string delta = detokenizer.Push(i);
    EXPECT_EQ(delta.find("\uFFFD"), std::string::npos);
    EXPECT_EQ(FirstInvalidUtf8(delta), std::nullopt);
    joined += delta;
  }
  EXPECT_EQ(joined + detokenizer.Flush(), text);
  EXPECT_EQ(tokenizer_->TokenBytes(id("<0xF0>")), "\xf0");
  EXPECT_EQ(tokenizer_->TokenBytes(id("<0x0A>")), "\n");
  EXPECT_EQ(tokenizer_->TokenBytes(id("\u2581the")), " the");
  // A lone continuation byte is replaced at once, a real U+FFFD delivered at once.
  for (int i = 0; i < 400; ++i) ASSERT_EQ(detokenizer.Push(id("<0x9F>")), "\uFFFD");
  const auto real = *tokenizer_->Encode("\uFFFD");
  EXPECT_EQ(*tokenizer_->Decode(real), "\uFFFD");
  EXPECT_EQ(detokenizer.Push(id("<0xF0>")), "");
  EXPECT_EQ(detokenizer.Push(id("\u2581the")), "\uFFFD the");
  EXPECT_EQ(detokenizer.Push(id("<0xF0>")), "");
  EXPECT_EQ(detokenizer.Flush(), "\uFFFD");
}

TEST_F(MistralTest, TheDummySpaceIsTakenOffOnce) {
  const auto ids = *tokenizer_->Encode("Hello  the");
  EXPECT_EQ(*tokenizer_->Decode(ids), "Hello  the");
  EXPECT_EQ(*tokenizer_->Decode(ids, {.continues_text = true}), " Hello  the");
  EXPECT_EQ(*tokenizer_->Decode(*tokenizer_->Encode("  two")), "  two");
  auto with_bos = ids;
  with_bos.insert(with_bos.begin(), 1);
  EXPECT_EQ(*tokenizer_->Decode(with_bos, {.skip_special = true}), "Hello  the");
  Detokenizer again(*tokenizer_);
  for (int round = 0; round < 2; ++round) {
    std::string text;
    for (int32_t id : ids) text += again.Push(id);
    EXPECT_EQ(text + again.Flush(), "Hello  the");
  }
  Detokenizer goes_on(*tokenizer_, true, /*continues_text=*/true);
  EXPECT_EQ(goes_on.Push(ids[0]), " Hello");
}

// Case tok-01 for a vocabulary whose text is one word to begin with.
TEST_F(MistralTest, LongTextsAreLinear) {
  const auto seconds = [&](const std::string& text) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_EQ(*tokenizer_->Decode(*tokenizer_->Encode(text)), text);
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  std::string us;
  for (int i = 0; i < 5000; ++i) us += "us";
  seconds(us);
  double best_43k = 1e9;
  double best_131k = 1e9;
  for (int i = 0; i < 3; ++i) {
    best_43k = std::min(best_43k, seconds(std::string(43'000, 'A')));
    best_131k = std::min(best_131k, seconds(std::string(131'072, 'A')));
  }
  seconds(std::string(131'072, ' '));
  EXPECT_LT(best_131k, 8 * best_43k);
  EXPECT_LT(best_131k, 5.0);
}

class QwenTest : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string path = SharedTokenizer("qwen.tiktoken");
    BATON_SKIP_WITHOUT(path);
    static const auto tokenizer = Tokenizer::FromVocabulary(ReadFileOrEmpty(path));
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = tokenizer->get();
  }

  const Tokenizer* tokenizer_ = nullptr;
};

TEST_F(QwenTest, Vectors) {
  CheckTextVectors(*tokenizer_, "qwen");
  CheckXquadVectors(*tokenizer_, "qwen");
  EXPECT_EQ(tokenizer_->TokenToId("<|endoftext|>"), 151643);
  EXPECT_EQ(tokenizer_->TokenToId("<|im_start|>"), 151644);
  EXPECT_EQ(tokenizer_->TokenToId("<|im_end|>"), 151645);
  EXPECT_EQ(tokenizer_->TokenToId("<|extra_204|>"), 151850);
  EXPECT_EQ(tokenizer_->eos_id(), 151643);
  EXPECT_FALSE(tokenizer_->adds_bos());
  EXPECT_THAT(*tokenizer_->Encode("<|im_start|>hi", {.parse_special = true}),
              ElementsAre(151644, 6023));
}

TEST_F(QwenTest, TokensOfTheConfig) {
  const auto tokenizer =
      Tokenizer::FromVocabulary(ReadFileOrEmpty(SharedTokenizer("qwen.tiktoken")),
                                R"({"added_tokens_decoder": {
            "151643": {"content": "<|endoftext|>", "special": true},
            "151644": {"content": "<|im_start|>", "special": true},
            "151645": {"content": "<|im_end|>", "special": true},
            "151657": {"content": "<tool_call>", "special": false, "normalized": false}},
          "eos_token": "<|im_end|>", "add_bos_token": false, "bos_token": null})");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_EQ((*tokenizer)->eos_id(), 151645);
  EXPECT_EQ((*tokenizer)->vocab_size(), 151658);
  EXPECT_THAT(*(*tokenizer)->Encode("<tool_call>hi"), ElementsAre(151657, 6023));

  if (BATON_SANITIZED) return;  // minutes, of json's own code
  // The same vocabulary from a GGUF file that also pads it.
  const Json json = Json::parse((*tokenizer)->Serialize());
  std::vector<std::string> texts(151936);
  GgufVocab vocab;
  for (const auto& [text, id] : json["model"]["vocab"].items()) texts[id] = text;
  std::vector<std::string> merges;
  for (const auto& merge : json["model"]["merges"]) {
    merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  for (size_t id = 0; id < texts.size(); ++id) {
    int64_t type = texts[id].empty() ? 5 : 1;
    if (texts[id].empty()) texts[id] = absl::StrCat("[PAD", id, "]");
    if (id >= 151643 && id <= 151645) type = 3;
    if (id == 151657) type = 4;
    vocab.tokens.push_back(texts[id]);
    vocab.token_types.push_back(type);
  }
  vocab.merges.assign(merges.begin(), merges.end());
  vocab.model = "gpt2";
  vocab.pre = "qwen2";
  const auto gguf = Tokenizer::FromGguf(vocab);
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  EXPECT_EQ((*gguf)->digest(), (*tokenizer)->digest());
  EXPECT_EQ((*gguf)->vocab_size(), 151936);
  EXPECT_EQ((*Tokenizer::FromJson((*gguf)->Serialize()))->vocab_size(), 151936);
  CheckXquadVectors(**gguf, "qwen");
}

TEST(TiktokenTest, SmallVocabularyOfQwensKind) {
  const char* config = R"({"tokenizer_class": "QWenTokenizer"})";
  // a b c ab abc; "abcab" has parts abc and ab only once "abc" is there.
  const std::string ranks = "YQ== 0\nYg== 1\nYw== 2\nYWI= 3\nYWJj 4\r\nYWJjYWI= 5\n";
  const auto tokenizer = Tokenizer::FromVocabulary(ranks, config);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("abcabab"), ElementsAre(5, 3));
  EXPECT_EQ(Json::parse((*tokenizer)->Serialize())["model"]["merges"],
            Json::parse(R"([["a","b"],["ab","c"],["abc","ab"]])"));
  // A token that merges don't reach is one as a whole word.
  const auto lone = Tokenizer::FromVocabulary("YQ== 0\nYg== 1\nYw== 2\nYWJj 3\n", config);
  ASSERT_TRUE(lone.ok()) << lone.status();
  EXPECT_THAT(*(*lone)->Encode("abc"), ElementsAre(3));
  EXPECT_THAT(*(*lone)->Encode("abcc"), ElementsAre(0, 1, 2, 2));
}

TEST(TiktokenTest, BrokenFilesAreRefused) {
  const char* config = R"({"tokenizer_class": "QWenTokenizer"})";
  for (const char* text : {"", "YQ==", "YQ== x", "YQ== -1", "YQ== 99999999999", "!!! 0", " 0",
                           "YQ== 0\nYQ== 1", "YQ== 0\nYg== 0", "YQ== 0\nYg== 2", "{\"a\": 1}"}) {
    const auto status = Tokenizer::FromVocabulary(text, config).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << text << status;
  }
  const auto unknown = Tokenizer::FromVocabulary("YQ== 0").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("1 ranks"));
}

TEST(SentencePieceModelTest, SmallModel) {
  const auto tokenizer = Tokenizer::FromVocabulary(SmallModelBytes());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_THAT(*(*tokenizer)->Encode("ab"), ElementsAre(259, 262));
  EXPECT_THAT(*(*tokenizer)->Encode("ba"), ElementsAre(260, 262, 261));
  EXPECT_THAT(*(*tokenizer)->Encode("[X]a"), ElementsAre(260, 263, 261));
  EXPECT_THAT(*(*tokenizer)->Encode("\n"), ElementsAre(260, 3 + '\n'));
  // Control pieces are text unless asked for; byte pieces always.
  EXPECT_EQ((*(*tokenizer)->Encode("<s>")).size(), 4u);
  EXPECT_THAT(*(*tokenizer)->Encode("<s>a", {.parse_special = true}), ElementsAre(1, 259));
  EXPECT_EQ((*(*tokenizer)->Encode("<0x41>")).size(), 7u);
}

TEST(SentencePieceModelTest, ConfigGoesFirst) {
  const auto tokenizer = Tokenizer::FromVocabulary(
      SmallModelBytes(),
      R"({"add_bos_token": false, "eos_token": "<|im_end|>", "added_tokens_decoder": {
            "1": {"content": "<s>", "special": true},
            "264": {"content": "<|im_end|>", "special": true}}})");
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  EXPECT_FALSE((*tokenizer)->adds_bos());
  EXPECT_EQ((*tokenizer)->eos_id(), 264);
  EXPECT_THAT(*(*tokenizer)->Encode("a<|im_end|>", {.parse_special = true}), ElementsAre(259, 264));
  const auto clash = Tokenizer::FromVocabulary(
      SmallModelBytes(), R"({"added_tokens_decoder": {"1": {"content": "<bos>"}}})");
  EXPECT_EQ(clash.status().code(), absl::StatusCode::kInvalidArgument) << clash.status();
}

TEST(SentencePieceModelTest, OtherKindsAreRefusedByName) {
  const auto message = [](const std::string& trainer, const std::string& normalizer) {
    const auto status = LoadStatus(SmallModel().Trainer(trainer).Normalizer(normalizer).bytes());
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    return std::string(status.message());
  };
  using W = ModelWriter;
  EXPECT_THAT(message(W::Number(3, 1), KeepSpaces()), HasSubstr("unigram"));
  EXPECT_THAT(message("", KeepSpaces()), HasSubstr("unigram"));  // the format's default
  EXPECT_THAT(message(W::Number(3, 3), KeepSpaces()), HasSubstr("word"));
  EXPECT_THAT(message(W::Number(3, 4), KeepSpaces()), HasSubstr("char"));
  for (const char* name : {"nmt_nfkc", "nfkc", "nmt_nfkc_cf", "nfkc_cf", "user_defined"}) {
    EXPECT_THAT(message(BpeTrainer(), W::Field(1, name) + W::Field(2, "map")), HasSubstr(name));
    EXPECT_THAT(message(BpeTrainer(), W::Field(1, name)), HasSubstr(name));
  }
  EXPECT_THAT(message(BpeTrainer(), W::Number(5, 0)), HasSubstr("escape_whitespaces"));
  EXPECT_THAT(message(BpeTrainer() + W::Number(24, 1), KeepSpaces()),
              HasSubstr("treat_whitespace_as_suffix"));
  const auto unused = LoadStatus(SmallModel().Piece("ab", -9, 5).Trainer(BpeTrainer()).bytes());
  EXPECT_THAT(std::string(unused.message()), HasSubstr("'ab'"));
}

TEST(SentencePieceModelTest, BrokenFilesAreRefused) {
  const std::string good = SmallModelBytes();
  ASSERT_TRUE(LoadStatus(good).ok());
  const size_t without_normalizer = SmallModel().Trainer(BpeTrainer()).bytes().size();
  for (size_t size = 1; size < good.size(); ++size) {
    EXPECT_EQ(LoadStatus(good.substr(0, size)).ok(), size == without_normalizer) << size;
  }
  std::string bad = good;
  for (size_t i = 0; i < good.size(); i += 3) {  // whatever happens, it doesn't crash
    bad[i] = static_cast<char>(bad[i] ^ 0x5A);
    if (auto tokenizer = Tokenizer::FromVocabulary(bad); tokenizer.ok()) {
      EXPECT_TRUE((*tokenizer)->Encode("a b [X]").ok());
    }
    bad[i] = good[i];
  }
  using W = ModelWriter;
  const auto refused = [](ModelWriter model) {
    const auto status = LoadStatus(model.Trainer(BpeTrainer()).Normalizer(KeepSpaces()).bytes());
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  };
  refused(SmallModel().Piece("", 0, 1));
  refused(SmallModel().Piece("\xff", 0, 1));
  refused(SmallModel().Piece("x", std::nanf(""), 1));
  refused(SmallModel().Piece("x", -std::numeric_limits<float>::infinity(), 1));
  refused(SmallModel().Piece("x", 0, 7));
  refused(SmallModel().Piece("a", 0, 1));       // twice
  refused(SmallModel().Piece("<unk2>", 0, 2));  // two unknown pieces
  refused(SmallModel().Piece("<0xZZ>", 0, 6));
  refused(SmallModel().Piece(std::string(100'000, 'x'), 0, 1));
  refused(W().Piece("a", 0, 1));  // no unknown piece
  // Lengths that the file can't hold.
  for (uint64_t size : {uint64_t{100}, uint64_t{1} << 31, uint64_t{1} << 40, ~uint64_t{0}}) {
    EXPECT_FALSE(LoadStatus("\n" + W::Varint(size) + "x").ok());
    EXPECT_FALSE(LoadStatus(W::Field(1, "\n" + W::Varint(size) + "x")).ok());
  }
  // Groups within groups are skipped without deep recursion.
  EXPECT_FALSE(LoadStatus(good + std::string(100'000, '\x3b')).ok());
}

// A GGUF file whose only optional key has the wrong type.
struct WrongType {
  std::string key;
  bool Has(std::string_view name) const { return name == key; }
  static absl::Status Wrong() { return absl::InvalidArgumentError("wrong type"); }
  absl::StatusOr<std::string_view> GetString(std::string_view name) const {
    if (name == key) return Wrong();
    return std::string_view("llama");
  }
  absl::StatusOr<std::vector<std::string_view>> GetStringArray(std::string_view name) const {
    if (name == key) return Wrong();
    return std::vector<std::string_view>{"a"};
  }
  absl::StatusOr<bool> GetBool(std::string_view) const { return Wrong(); }
  absl::StatusOr<int64_t> GetInt(std::string_view) const { return Wrong(); }
  absl::StatusOr<std::vector<int64_t>> GetIntArray(std::string_view) const { return Wrong(); }
  absl::StatusOr<std::vector<float>> GetFloatArray(std::string_view) const { return Wrong(); }
};

// Case cfg-05: a flag of the wrong type is an error, not a default.
TEST(GgufVocabTest, KeysOfTheWrongTypeAreErrors) {
  EXPECT_TRUE(ReadGgufVocab(WrongType{"none"}).ok());
  for (const char* key :
       {"pre", "token_type", "scores", "merges", "bos_token_id", "eos_token_id", "unknown_token_id",
        "add_bos_token", "add_space_prefix", "remove_extra_whitespaces"}) {
    const auto vocab = ReadGgufVocab(WrongType{absl::StrCat("tokenizer.ggml.", key)});
    EXPECT_EQ(vocab.status().code(), absl::StatusCode::kInvalidArgument) << key;
  }
}

// A folder that has only tokenizer.model or only *.tiktoken.
TEST(ModelFolderTest, AVocabularyWithoutTokenizerJson) {
  namespace fs = std::filesystem;
  const fs::path folder = fs::path(::testing::TempDir()) / "baton_vocabulary_only";
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const char* file : {"config.json", "model.safetensors"}) {
    fs::copy(fs::path(TestDataDir()) / "tiny_llama" / file, folder / file);
  }
  const auto write = [&](const char* name, const std::string& bytes) {
    std::ofstream(folder / name, std::ios::binary) << bytes;
  };
  const auto vocabulary = [&] {
    const auto source = ModelSource::Open(folder.string());
    EXPECT_TRUE(source.ok()) << source.status();
    return (*source)->tokenizer_vocabulary();
  };
  EXPECT_EQ(vocabulary(), "");
  write("b.tiktoken", "Yg== 0\n");
  write("a.tiktoken", "YQ== 0\n");
  EXPECT_EQ(vocabulary(), "YQ== 0\n");
  write("tokenizer.model", SmallModelBytes());
  EXPECT_EQ(vocabulary(), SmallModelBytes());
  EXPECT_TRUE(Tokenizer::FromVocabulary(vocabulary()).ok());
  write("tokenizer.json", "{}");
  EXPECT_EQ(vocabulary(), "");
  fs::remove_all(folder);
}

TEST(GgufLlamaTest, BrokenVocabulariesAreRefused) {
  const auto tokenizer = Tokenizer::FromVocabulary(SmallModelBytes());
  ASSERT_TRUE(tokenizer.ok());
  const auto refused = [&](const std::function<void(GgufVocab*)>& change) {
    LlamaGguf form = ToGguf(**tokenizer);
    change(&form.vocab);
    const auto status = Tokenizer::FromGguf(form.vocab).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  };
  LlamaGguf form = ToGguf(**tokenizer);
  ASSERT_EQ((*Tokenizer::FromGguf(form.vocab))->digest(), (*tokenizer)->digest());
  refused([](GgufVocab* vocab) { vocab->scores.clear(); });
  refused([](GgufVocab* vocab) { vocab->scores.pop_back(); });
  refused([](GgufVocab* vocab) { vocab->scores[260] = std::nanf(""); });
  refused([](GgufVocab* vocab) { vocab->token_types.clear(); });
  refused([](GgufVocab* vocab) { vocab->token_types[260] = 6; });
  refused([](GgufVocab* vocab) { vocab->unk_id = 5000; });
  refused([](GgufVocab* vocab) { vocab->bos_id = -1; });
  // Without a space in front, as Gemma's files say.
  form.vocab.add_space_prefix = false;
  const auto bare = Tokenizer::FromGguf(form.vocab);
  EXPECT_THAT(*(*bare)->Encode("a"), ElementsAre(261));
  EXPECT_EQ(*(*bare)->Decode({259}), " a");
  EXPECT_NE((*bare)->digest(), (*tokenizer)->digest());
}

}  // namespace
}  // namespace baton
