// Small tokenizers of many shapes against the ids of Hugging Face `tokenizers` and SentencePiece:
// tests/data/tokenizer/make_fixtures.py.
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "common/tokenizer/detokenizer.h"
#include "common/tokenizer/tokenizer.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/common/tokenizer/vectors.h"

namespace baton {
namespace {

using Json = nlohmann::json;

Json ReadFixture(const std::string& file) {
  return Json::parse(ReadFileOrEmpty(TestDataDir() + "/tokenizer/" + file));
}

Json Patched(Json tokenizer, const Json& patch) {
  for (const auto& [key, value] : patch.items()) {
    if (key == "model") {
      for (const auto& [name, setting] : value.items()) tokenizer["model"][name] = setting;
    } else {
      tokenizer[key] = value;
    }
  }
  return tokenizer;
}

using Ids = std::vector<int32_t>;

void CheckCase(const Tokenizer& tokenizer, const Json& row) {
  const auto text = row[0].get<std::string>();
  const auto ids = tokenizer.Encode(text, {.parse_special = true});
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(*ids, row[1].get<Ids>()) << '"' << text << '"';
  const auto plain = tokenizer.Encode(text);
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(*plain, row[2].get<Ids>()) << '"' << text << "\" without special tokens";
  const auto decoded = row[3].get<std::string>();
  EXPECT_EQ(Streamed(tokenizer, *ids), *tokenizer.Decode(*ids)) << '"' << text << '"';
  // What bytes that form no character become is each one's own.
  if (decoded.find("\uFFFD") == std::string::npos) {
    EXPECT_EQ(*tokenizer.Decode(*ids), decoded) << '"' << text << '"';
  }
}

// One text in two pieces has the ids of the whole.
void CheckPieces(const Tokenizer& tokenizer, const Json& row) {
  const auto text = row[0].get<std::string>();
  const std::string_view view = text;
  const size_t half = view.size() / 2;
  if (FirstInvalidUtf8(view.substr(0, half)) || row[1] != row[2]) return;
  const auto ids = tokenizer.EncodePieces({{view.substr(0, half)}, {view.substr(half)}});
  ASSERT_TRUE(ids.ok()) << ids.status();
  EXPECT_EQ(*ids, row[1].get<Ids>()) << '"' << text << "\" in two";
}

class HuggingFaceTest : public ::testing::TestWithParam<size_t> {};

const Json& HuggingFace() {
  static const Json fixture = ReadFixture("huggingface.json");
  return fixture;
}

TEST_P(HuggingFaceTest, SameIdsAndText) {
  const Json& variant = HuggingFace()["variants"][GetParam()];
  const Json json = Patched(HuggingFace()["bases"][variant["base"]], variant["patch"]);
  const auto tokenizer = Tokenizer::FromJson(json.dump());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const auto again = Tokenizer::FromJson((*tokenizer)->Serialize());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->Serialize(), (*tokenizer)->Serialize());
  EXPECT_EQ((*again)->digest(), (*tokenizer)->digest());
  for (const Json& row : variant["cases"]) {
    CheckCase(**tokenizer, row);
    CheckCase(**again, row);
    if (!variant["patch"].contains("added_tokens")) CheckPieces(**tokenizer, row);
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, HuggingFaceTest, ::testing::Range(size_t{0}, HuggingFace()["variants"].size()),
    [](const auto& info) {
      return HuggingFace()["variants"][info.param]["name"].template get<std::string>();
    });

class SentencePieceTest : public ::testing::TestWithParam<size_t> {};

const Json& SentencePiece() {
  static const Json fixture = ReadFixture("sentencepiece.json");
  return fixture;
}

TEST_P(SentencePieceTest, SameIdsAndText) {
  const Json& row = SentencePiece()[GetParam()];
  std::string model;
  ASSERT_TRUE(absl::Base64Unescape(row["model"].get<std::string>(), &model));
  const auto tokenizer = Tokenizer::FromVocabulary(model);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (size_t id = 0; id < row["pieces"].size(); ++id) {
    EXPECT_EQ((*tokenizer)->TokenToId(row["pieces"][id][0].get<std::string>()),
              static_cast<int32_t>(id));
  }
  const auto again = Tokenizer::FromJson((*tokenizer)->Serialize());
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ((*again)->digest(), (*tokenizer)->digest());
  for (const Json& item : row["cases"]) {
    const auto text = item[0].get<std::string>();
    const auto ids = (*tokenizer)->Encode(text);
    ASSERT_TRUE(ids.ok()) << ids.status();
    EXPECT_EQ(*ids, item[1].get<Ids>()) << '"' << text << '"';
    EXPECT_EQ(*ids, *(*again)->Encode(text));
    const auto decoded = item[2].get<std::string>();
    // SentencePiece writes unknown pieces as " \u2047 ".
    if (decoded.find("\u2047") != std::string::npos) continue;
    EXPECT_EQ(*(*tokenizer)->Decode(*ids), decoded) << '"' << text << '"';
    EXPECT_EQ(Streamed(**tokenizer, *ids), decoded);
  }
}

INSTANTIATE_TEST_SUITE_P(All, SentencePieceTest,
                         ::testing::Range(size_t{0}, SentencePiece().size()), [](const auto& info) {
                           return SentencePiece()[info.param]["name"].template get<std::string>();
                         });

}  // namespace
}  // namespace baton
