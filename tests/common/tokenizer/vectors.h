// The shared vectors of ids, checked against a tokenizer however it was loaded.
#pragma once

#include <openssl/sha.h>

#include <fstream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/tokenizer/detokenizer.h"
#include "common/tokenizer/tokenizer.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/test_data.h"

namespace baton {

inline std::vector<nlohmann::json> ReadJsonLines(const std::string& path) {
  std::ifstream in(path);
  std::vector<nlohmann::json> rows;
  for (std::string line; std::getline(in, line);) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

inline std::string SharedTokenizer(const std::string& file) {
  return SharedDataDir() + "/tokenizers/" + file;
}

inline std::string Streamed(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  Detokenizer detokenizer(tokenizer, /*skip_special=*/false);
  std::string text;
  for (int32_t id : ids) text += detokenizer.Push(id);
  return text + detokenizer.Flush();
}

// 95 texts of vectors_NAME.jsonl, and back.
inline void CheckTextVectors(const Tokenizer& tokenizer, const std::string& name) {
  std::map<std::string, std::string> texts;
  for (const auto& row : ReadJsonLines(SharedTokenizer("texts.jsonl"))) {
    texts[row["id"]] = row["text"];
  }
  const auto rows = ReadJsonLines(SharedTokenizer("vectors_" + name + ".jsonl"));
  ASSERT_EQ(rows.size(), 95u);
  for (const auto& row : rows) {
    const std::string& text = texts.at(row["id"]);
    const auto ids = tokenizer.Encode(text);
    ASSERT_TRUE(ids.ok()) << row["id"] << ids.status();
    EXPECT_EQ(*ids, row["ids"].get<std::vector<int32_t>>()) << row["id"];
    const char* key =
        row.contains("bytes_round_trip") ? "bytes_round_trip" : "decoded_equals_input";
    const std::string decoded = *tokenizer.Decode(*ids);
    // "bytes": those of the text after NFC.
    const bool same =
        decoded == text || (row.contains("bytes_round_trip") && *tokenizer.Encode(decoded) == *ids);
    EXPECT_EQ(same, row[key].get<bool>()) << row["id"];
    EXPECT_EQ(Streamed(tokenizer, *ids), decoded) << row["id"];
  }
}

// 240 paragraphs in 12 languages: count, and SHA-256 over all ids. `other`: what is expected
// instead, by language and number.
inline void CheckXquadVectors(const Tokenizer& tokenizer, const std::string& name,
                              const std::map<std::string, std::string>& other = {}) {
  std::map<std::string, std::string> paragraphs;
  for (const auto& row : ReadJsonLines(SharedDataDir() + "/xquad/paragraphs_12_languages.jsonl")) {
    paragraphs[absl::StrCat(row["lang"].get<std::string>(), row["n"].get<int>())] = row["text"];
  }
  const auto rows = ReadJsonLines(SharedTokenizer("vectors_" + name + "_xquad.jsonl"));
  ASSERT_EQ(rows.size(), 240u);
  for (const auto& row : rows) {
    const std::string key = absl::StrCat(row["lang"].get<std::string>(), row["n"].get<int>());
    const auto ids = tokenizer.Encode(paragraphs.at(key));
    ASSERT_TRUE(ids.ok());
    ASSERT_EQ(ids->size(), row["n_ids"].get<size_t>()) << key;
    const std::string joined = absl::StrJoin(*ids, ",");
    unsigned char sha[SHA256_DIGEST_LENGTH];
    SHA256(reinterpret_cast<const unsigned char*>(joined.data()), joined.size(), sha);
    std::string hex;
    for (int i = 0; i < 16; ++i) absl::StrAppend(&hex, absl::Hex(sha[i], absl::kZeroPad2));
    const auto it = other.find(key);
    EXPECT_EQ(hex, it == other.end() ? row["sha256_32"].get<std::string>() : it->second) << key;
  }
}

}  // namespace baton
