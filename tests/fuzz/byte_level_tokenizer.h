// A byte-level BPE for fuzz targets: all 256 bytes, a few merges, the special tokens asked for.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/fuzz_util.h"

namespace baton {

// `pattern`: how words are split; empty: GPT-2's.
inline std::unique_ptr<Tokenizer> MakeByteLevelTokenizer(std::string_view pattern,
                                                         const std::vector<std::string>& specials) {
  using Json = nlohmann::json;
  const auto spelled = [](std::string_view bytes) {
    std::string out;
    for (const char byte : bytes) out += ByteLevelSpelling(static_cast<uint8_t>(byte));
    return out;
  };
  Json vocab = Json::object();
  for (int b = 0; b < 256; ++b) vocab[spelled(std::string(1, static_cast<char>(b)))] = b;
  Json merges = Json::array();
  for (const auto& [left, right] :
       std::vector<std::pair<std::string, std::string>>{{" ", "t"},
                                                        {"h", "e"},
                                                        {" t", "he"},
                                                        {"a", "a"},
                                                        {"aa", "aa"},
                                                        {"\xE2", "\x80"},
                                                        {"\xE2\x80", "\x8B"},
                                                        {"\xF0", "\x9F"},
                                                        {" ", " "},
                                                        {"  ", "  "},
                                                        {"\n", "\n"},
                                                        {"1", "2"},
                                                        {"'", "s"},
                                                        {"\xC3", "\xA9"}}) {
    merges.push_back(Json::array({spelled(left), spelled(right)}));
    const size_t id = vocab.size();
    vocab[spelled(left + right)] = id;
  }
  Json pre = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", pattern.empty()}};
  if (!pattern.empty()) {
    const Json split = {{"type", "Split"},
                        {"pattern", {{"Regex", pattern}}},
                        {"behavior", "Isolated"},
                        {"invert", false}};
    pre = {{"type", "Sequence"}, {"pretokenizers", Json::array({split, pre})}};
  }
  Json added = Json::array();
  for (const std::string& special : specials) {
    const size_t id = vocab.size() + added.size();
    added.push_back({{"id", id},
                     {"content", special},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", true}});
  }
  const Json json = {{"version", "1.0"},
                     {"added_tokens", added},
                     {"normalizer", nullptr},
                     {"pre_tokenizer", pre},
                     {"post_processor", nullptr},
                     {"decoder", {{"type", "ByteLevel"}}},
                     {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
  auto tokenizer = Tokenizer::FromJson(json.dump());
  if (!tokenizer.ok()) std::fprintf(stderr, "%s\n", tokenizer.status().ToString().c_str());
  FUZZ_CHECK(tokenizer.ok());
  return *std::move(tokenizer);
}

}  // namespace baton
