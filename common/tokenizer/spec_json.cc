// tokenizer.json <-> TokenizerSpec.
#include <algorithm>
#include <set>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/tokenizer/tokenizer_spec.h"
#include "common/tokenizer/utf8.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

using Json = nlohmann::json;

absl::Status Malformed(std::string_view what) {
  return absl::InvalidArgumentError(Cat("tokenizer.json: ", what));
}

absl::Status Unsupported(std::string_view what) {
  return absl::UnimplementedError(Cat("tokenizer.json: ", what, " is not supported"));
}

// The value of `key`, or null when absent.
const Json& At(const Json& object, const char* key) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto it = object.find(key);
  return it == object.end() ? null : *it;
}

std::string TypeOf(const Json& part) {
  const Json& type = At(part, "type");
  return type.is_string() ? type.get<std::string>() : "";
}

absl::StatusOr<bool> BoolOr(const Json& object, const char* key, bool fallback) {
  const Json& value = At(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) return Malformed(Cat(key, " must be true or false"));
  return value.get<bool>();
}

absl::StatusOr<int32_t> TokenId(const Json& value, std::string_view what) {
  if (!value.is_number_integer() || value < 0 || value >= kMaxVocab) {
    return Malformed(Cat("id of ", what, " must be an integer in [0, ", kMaxVocab, ")"));
  }
  return value.get<int32_t>();
}

absl::Status ReadNormalizer(const Json& part, TokenizerSpec* spec) {
  if (part.is_null()) return absl::OkStatus();
  const std::string type = TypeOf(part);
  if (type == "NFC") {
    spec->nfc = true;
    return absl::OkStatus();
  }
  if (type == "Sequence" && At(part, "normalizers").is_array()) {
    for (const Json& inner : At(part, "normalizers")) {
      if (TypeOf(inner) == "Sequence") return Unsupported("a nested normalizer Sequence");
      BATON_RETURN_IF_ERROR(ReadNormalizer(inner, spec));
    }
    return absl::OkStatus();
  }
  return Unsupported(Cat("normalizer '", type, "'"));
}

absl::Status ReadSplit(const Json& part, TokenizerSpec* spec) {
  const Json& pattern = At(At(part, "pattern"), "Regex");
  if (!pattern.is_string()) return Unsupported("a Split pre-tokenizer without a Regex pattern");
  const Json& behavior = At(part, "behavior");
  BATON_ASSIGN_OR_RETURN(const bool invert, BoolOr(part, "invert", false));
  const std::string name = behavior.is_string() ? behavior.get<std::string>() : "";
  if (name != "Isolated" || invert) {
    return Unsupported(Cat("Split behavior '", name, "'", invert ? " with invert" : ""));
  }
  spec->split_patterns.push_back(pattern.get<std::string>());
  return absl::OkStatus();
}

absl::Status ReadPreTokenizer(const Json& part, TokenizerSpec* spec, bool* byte_level) {
  const std::string type = TypeOf(part);
  if (*byte_level) return Unsupported(Cat("pre-tokenizer '", type, "' after ByteLevel"));
  if (type == "Digits") {
    BATON_ASSIGN_OR_RETURN(const bool single, BoolOr(part, "individual_digits", false));
    spec->split_patterns.push_back(single ? R"(\p{N})" : R"(\p{N}+)");
    return absl::OkStatus();
  }
  if (type == "Split") return ReadSplit(part, spec);
  if (type == "ByteLevel") {
    *byte_level = true;
    BATON_ASSIGN_OR_RETURN(spec->add_prefix_space, BoolOr(part, "add_prefix_space", true));
    BATON_ASSIGN_OR_RETURN(const bool use_regex, BoolOr(part, "use_regex", true));
    if (spec->add_prefix_space && !spec->split_patterns.empty()) {
      return Unsupported("add_prefix_space after another pre-tokenizer");
    }
    if (use_regex) spec->split_patterns.emplace_back(kGpt2Pattern);
    return absl::OkStatus();
  }
  return Unsupported(Cat("pre-tokenizer '", type, "'"));
}

absl::Status ReadPreTokenizers(const Json& part, TokenizerSpec* spec) {
  bool byte_level = false;
  if (TypeOf(part) == "Sequence" && At(part, "pretokenizers").is_array()) {
    for (const Json& inner : At(part, "pretokenizers")) {
      BATON_RETURN_IF_ERROR(ReadPreTokenizer(inner, spec, &byte_level));
    }
  } else {
    BATON_RETURN_IF_ERROR(ReadPreTokenizer(part, spec, &byte_level));
  }
  if (!byte_level) return Unsupported("a pre-tokenizer without ByteLevel");
  return absl::OkStatus();
}

absl::Status ReadVocabulary(const Json& vocab, TokenizerSpec* spec) {
  if (!vocab.is_object()) return Malformed("model.vocab must be an object");
  for (const auto& [token, value] : vocab.items()) {
    BATON_ASSIGN_OR_RETURN(const int32_t id, TokenId(value, Cat("token '", token, "'")));
    const auto index = static_cast<size_t>(id);
    if (index >= spec->tokens.size()) spec->tokens.resize(index + 1);
    if (!spec->tokens[index].empty()) {
      return Malformed(Cat("id ", id, " belongs to '", spec->tokens[index], "' and '", token, "'"));
    }
    spec->tokens[index] = token;
  }
  return absl::OkStatus();
}

absl::Status ReadMerges(const Json& merges, TokenizerSpec* spec) {
  if (!merges.is_array()) return Malformed("model.merges must be an array");
  spec->merges.reserve(merges.size());
  for (size_t i = 0; i < merges.size(); ++i) {
    const Json& merge = merges[i];
    if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
      spec->merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
      continue;
    }
    const std::string text = merge.is_string() ? merge.get<std::string>() : "";
    const size_t space = text.find(' ');
    if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
      return Malformed(Cat("model.merges[", i, "] must be two tokens"));
    }
    spec->merges.emplace_back(text.substr(0, space), text.substr(space + 1));
  }
  return absl::OkStatus();
}

absl::Status ReadModel(const Json& model, TokenizerSpec* spec) {
  if (!model.is_object()) return Malformed("model must be an object");
  const std::string type = TypeOf(model);
  if (!type.empty() && type != "BPE") return Unsupported(Cat("model type '", type, "'"));
  for (const char* key :
       {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& value = At(model, key);
    const bool unset = value.is_null() || (value.is_string() && value.get<std::string>().empty()) ||
                       (value.is_number() && value == 0);
    if (!unset) return Unsupported(Cat("model.", key));
  }
  BATON_ASSIGN_OR_RETURN(const bool byte_fallback, BoolOr(model, "byte_fallback", false));
  if (byte_fallback) return Unsupported("model.byte_fallback");
  BATON_ASSIGN_OR_RETURN(spec->ignore_merges, BoolOr(model, "ignore_merges", false));
  BATON_RETURN_IF_ERROR(ReadVocabulary(At(model, "vocab"), spec));
  return ReadMerges(At(model, "merges"), spec);
}

absl::Status ReadAddedTokens(const Json& tokens, TokenizerSpec* spec) {
  if (tokens.is_null()) return absl::OkStatus();
  if (!tokens.is_array()) return Malformed("added_tokens must be an array");
  for (const Json& token : tokens) {
    const Json& content = At(token, "content");
    if (!content.is_string() || content.get<std::string>().empty()) {
      return Malformed("an added token has no content");
    }
    AddedToken added;
    added.content = content.get<std::string>();
    BATON_ASSIGN_OR_RETURN(added.id, TokenId(At(token, "id"), added.content));
    BATON_ASSIGN_OR_RETURN(added.special, BoolOr(token, "special", false));
    for (const char* key : {"single_word", "lstrip", "rstrip"}) {
      BATON_ASSIGN_OR_RETURN(const bool set, BoolOr(token, key, false));
      if (set) return Unsupported(Cat(key, " of added token '", added.content, "'"));
    }
    spec->added.push_back(std::move(added));
  }
  return absl::OkStatus();
}

// The id of an added token or vocabulary entry by its text.
std::optional<int32_t> FindToken(const TokenizerSpec& spec, std::string_view text) {
  for (const AddedToken& added : spec.added) {
    if (added.content == text) return added.id;
  }
  const auto it = std::find(spec.tokens.begin(), spec.tokens.end(), text);
  if (text.empty() || it == spec.tokens.end()) return std::nullopt;
  return static_cast<int32_t>(it - spec.tokens.begin());
}

// TemplateProcessing puts tokens around the text; Baton knows "one special token in front".
absl::Status ReadTemplate(const Json& part, TokenizerSpec* spec) {
  const Json& single = At(part, "single");
  if (!single.is_array()) return Malformed("post_processor.single must be an array");
  bool text_seen = false;
  for (const Json& item : single) {
    if (item.is_object() && item.contains("Sequence")) {
      text_seen = true;
      continue;
    }
    const Json& id = At(At(item, "SpecialToken"), "id");
    if (!id.is_string()) return Malformed("post_processor.single holds an unknown item");
    const std::string text = id.get<std::string>();
    if (text_seen || spec->add_bos) {
      return Unsupported(
          Cat("post-processor token '", text, "' that is not the only one in front of the text"));
    }
    spec->bos_id = FindToken(*spec, text);
    if (!spec->bos_id.has_value()) {
      return Malformed(Cat("post-processor token '", text, "' is not in the vocabulary"));
    }
    spec->add_bos = true;
  }
  return absl::OkStatus();
}

absl::Status ReadPostProcessor(const Json& part, TokenizerSpec* spec) {
  if (part.is_null()) return absl::OkStatus();
  const std::string type = TypeOf(part);
  if (type == "ByteLevel") return absl::OkStatus();  // changes offsets only
  if (type == "TemplateProcessing") return ReadTemplate(part, spec);
  if (type == "Sequence" && At(part, "processors").is_array()) {
    for (const Json& inner : At(part, "processors")) {
      if (TypeOf(inner) == "Sequence") return Unsupported("a nested post-processor Sequence");
      BATON_RETURN_IF_ERROR(ReadPostProcessor(inner, spec));
    }
    return absl::OkStatus();
  }
  return Unsupported(Cat("post-processor '", type, "'"));
}

// tokenizer_config.json: "bos_token" is a string or {"content": …}.
absl::Status ReadNamedToken(const Json& config, const char* key, const TokenizerSpec& spec,
                            std::optional<int32_t>* id) {
  const Json& value = At(config, key);
  if (value.is_null()) return absl::OkStatus();
  const Json& text = value.is_object() ? At(value, "content") : value;
  if (!text.is_string()) {
    return absl::InvalidArgumentError(
        Cat("tokenizer_config.json: ", key, " must be a token's text"));
  }
  *id = FindToken(spec, text.get<std::string>());
  if (!id->has_value()) {
    return absl::InvalidArgumentError(Cat("tokenizer_config.json: ", key, " '",
                                          text.get<std::string>(), "' is not in the vocabulary"));
  }
  return absl::OkStatus();
}

absl::Status ReadTokenizerConfig(std::string_view text, TokenizerSpec* spec) {
  if (text.empty()) return absl::OkStatus();
  const Json config = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) {
    return absl::InvalidArgumentError("tokenizer_config.json: not a JSON object");
  }
  BATON_RETURN_IF_ERROR(ReadNamedToken(config, "bos_token", *spec, &spec->bos_id));
  BATON_RETURN_IF_ERROR(ReadNamedToken(config, "eos_token", *spec, &spec->eos_id));
  const Json& add_bos = At(config, "add_bos_token");
  if (add_bos.is_null()) return absl::OkStatus();
  if (!add_bos.is_boolean()) {
    return absl::InvalidArgumentError("tokenizer_config.json: add_bos_token must be true or false");
  }
  spec->add_bos = add_bos.get<bool>();
  return absl::OkStatus();
}

// Baton's own addition to the format, written by SpecToJson.
absl::Status ReadBatonPart(const Json& part, TokenizerSpec* spec) {
  if (part.is_null()) return absl::OkStatus();
  if (const Json& id = At(part, "bos_id"); !id.is_null()) {
    BATON_ASSIGN_OR_RETURN(spec->bos_id, TokenId(id, "BOS"));
  }
  if (const Json& id = At(part, "eos_id"); !id.is_null()) {
    BATON_ASSIGN_OR_RETURN(spec->eos_id, TokenId(id, "EOS"));
  }
  BATON_ASSIGN_OR_RETURN(spec->add_bos, BoolOr(part, "add_bos", spec->add_bos));
  return absl::OkStatus();
}

absl::StatusOr<TokenizerSpec> Read(std::string_view tokenizer_json,
                                   std::string_view tokenizer_config_json) {
  if (const auto bad = FirstInvalidUtf8(tokenizer_json)) {
    return Malformed(Cat("not UTF-8 at byte ", *bad));
  }
  const Json root = Json::parse(tokenizer_json, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object()) return Malformed("not a JSON object");
  TokenizerSpec spec;
  BATON_RETURN_IF_ERROR(ReadNormalizer(At(root, "normalizer"), &spec));
  BATON_RETURN_IF_ERROR(ReadPreTokenizers(At(root, "pre_tokenizer"), &spec));
  BATON_RETURN_IF_ERROR(ReadModel(At(root, "model"), &spec));
  BATON_RETURN_IF_ERROR(ReadAddedTokens(At(root, "added_tokens"), &spec));
  BATON_RETURN_IF_ERROR(ReadPostProcessor(At(root, "post_processor"), &spec));
  BATON_RETURN_IF_ERROR(ReadTokenizerConfig(tokenizer_config_json, &spec));
  BATON_RETURN_IF_ERROR(ReadBatonPart(At(root, "baton"), &spec));
  return spec;
}

}  // namespace

absl::StatusOr<TokenizerSpec> SpecFromJson(std::string_view tokenizer_json,
                                           std::string_view tokenizer_config_json) {
  try {
    return Read(tokenizer_json, tokenizer_config_json);
  } catch (const std::exception& e) {
    return Malformed(e.what());
  }
}

std::string SpecToJson(const TokenizerSpec& spec) {
  Json splits = Json::array();
  for (const std::string& pattern : spec.split_patterns) {
    splits.push_back({{"type", "Split"},
                      {"pattern", {{"Regex", pattern}}},
                      {"behavior", "Isolated"},
                      {"invert", false}});
  }
  const Json byte_level = {{"type", "ByteLevel"}, {"trim_offsets", true}, {"use_regex", false}};
  Json last = byte_level;
  last["add_prefix_space"] = spec.add_prefix_space;
  if (spec.add_prefix_space) {
    // The space goes in before splitting, so the pattern has to be ByteLevel's own.
    splits = Json::array();
    last["use_regex"] = !spec.split_patterns.empty();
  }
  splits.push_back(last);

  Json vocab = Json::object();
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (!spec.tokens[id].empty()) vocab[spec.tokens[id]] = id;
  }
  Json merges = Json::array();
  for (const auto& [left, right] : spec.merges) merges.push_back({left, right});
  Json added = Json::array();
  for (const AddedToken& token : spec.added) {
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"special", token.special},
                     {"normalized", false},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false}});
  }
  Json root = {
      {"version", "1.0"},
      {"normalizer", spec.nfc ? Json{{"type", "NFC"}} : Json()},
      {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", splits}}},
      {"post_processor", nullptr},
      {"decoder",
       {{"type", "ByteLevel"},
        {"add_prefix_space", true},
        {"trim_offsets", true},
        {"use_regex", true}}},
      {"added_tokens", added},
      {"model",
       {{"type", "BPE"},
        {"ignore_merges", spec.ignore_merges},
        {"vocab", vocab},
        {"merges", merges}}},
      {"baton", {{"add_bos", spec.add_bos}}},
  };
  if (spec.bos_id) root["baton"]["bos_id"] = *spec.bos_id;
  if (spec.eos_id) root["baton"]["eos_id"] = *spec.eos_id;
  return root.dump();
}

}  // namespace baton
