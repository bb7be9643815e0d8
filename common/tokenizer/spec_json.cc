// tokenizer.json -> TokenizerSpec.
#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/tokenizer/json_access.h"
#include "common/tokenizer/pattern.h"
#include "common/tokenizer/tokenizer_spec.h"
#include "common/tokenizer/utf8.h"

namespace baton {
namespace {

using tokenizer_json::At;
using tokenizer_json::BoolOr;
using tokenizer_json::Json;
using tokenizer_json::StringOr;
using tokenizer_json::TokenId;
using tokenizer_json::TypeOf;

// Each step of splitting calls the next one.
constexpr size_t kMaxSteps = 64;

absl::Status Malformed(std::string_view what) {
  return absl::InvalidArgumentError(Cat("tokenizer.json: ", what));
}

absl::Status Unsupported(std::string_view what) {
  return absl::UnimplementedError(Cat("tokenizer.json: ", what, " is not supported"));
}

// {"String": …} or {"Regex": …}
absl::StatusOr<std::string> ReadPattern(const Json& part, std::string_view of) {
  const Json& pattern = At(part, "pattern");
  if (const Json& text = At(pattern, "String"); text.is_string()) {
    return Pattern::Literal(text.get<std::string>());
  }
  if (const Json& regex = At(pattern, "Regex"); regex.is_string()) return regex.get<std::string>();
  return Malformed(Cat(of, " has no pattern with String or Regex"));
}

absl::Status ReadNormalizer(const Json& part, TokenizerSpec* spec) {
  using Kind = NormalizerStep::Kind;
  if (part.is_null()) return absl::OkStatus();
  const std::string type = TypeOf(part);
  if (spec->normalizer.size() >= kMaxSteps) return Unsupported("a normalizer of so many steps");
  if (type == "Sequence" && At(part, "normalizers").is_array()) {
    for (const Json& inner : At(part, "normalizers")) {
      if (TypeOf(inner) == "Sequence") return Unsupported("a nested normalizer Sequence");
      BATON_RETURN_IF_ERROR(ReadNormalizer(inner, spec));
    }
    return absl::OkStatus();
  }
  NormalizerStep step;
  if (type == "NFC") {
    step.kind = Kind::kNfc;
  } else if (type == "NFD") {
    step.kind = Kind::kNfd;
  } else if (type == "NFKC") {
    step.kind = Kind::kNfkc;
  } else if (type == "NFKD") {
    step.kind = Kind::kNfkd;
  } else if (type == "Prepend" && At(part, "prepend").is_string()) {
    step.kind = Kind::kPrepend;
    step.content = StringOr(part, "prepend", "");
  } else if (type == "Replace" && At(part, "content").is_string()) {
    step.kind = Kind::kReplace;
    BATON_ASSIGN_OR_RETURN(step.pattern, ReadPattern(part, "normalizer Replace"));
    step.content = StringOr(part, "content", "");
  } else if (type == "SentencePiece") {  // Baton's own, see SpecToJson
    step.kind = Kind::kSentencePiece;
    BATON_ASSIGN_OR_RETURN(step.dummy_prefix, BoolOr(part, "add_dummy_prefix", true));
    BATON_ASSIGN_OR_RETURN(step.collapse_spaces, BoolOr(part, "remove_extra_whitespaces", false));
  } else {
    return Unsupported(Cat("normalizer '", type, "'"));
  }
  spec->normalizer.push_back(std::move(step));
  return absl::OkStatus();
}

absl::StatusOr<SplitStep::Behavior> ReadBehavior(const Json& part) {
  using Behavior = SplitStep::Behavior;
  const std::string name = StringOr(part, "behavior", "");
  if (name == "Isolated") return Behavior::kIsolated;
  if (name == "Removed") return Behavior::kRemoved;
  if (name == "MergedWithPrevious") return Behavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return Behavior::kMergedWithNext;
  if (name == "Contiguous") return Behavior::kContiguous;
  return Unsupported(Cat(TypeOf(part), " behavior '", name, "'"));
}

absl::Status ReadMetaspace(const Json& part, TokenizerSpec* spec) {
  using Prefix = SplitStep::Prefix;
  if (StringOr(part, "replacement", kSpaceMark) != kSpaceMark) {
    return Unsupported("a Metaspace replacement other than U+2581");
  }
  SplitStep step;
  step.kind = SplitStep::Kind::kMetaspace;
  BATON_ASSIGN_OR_RETURN(const bool add_prefix_space, BoolOr(part, "add_prefix_space", true));
  const std::string scheme =
      StringOr(part, "prepend_scheme", add_prefix_space ? "always" : "never");
  if (scheme == "always") {
    step.prefix = Prefix::kAlways;
  } else if (scheme == "first") {
    step.prefix = Prefix::kFirst;
  } else if (scheme != "never") {
    return Unsupported(Cat("Metaspace prepend_scheme '", scheme, "'"));
  }
  spec->splits.push_back(std::move(step));
  BATON_ASSIGN_OR_RETURN(const bool split, BoolOr(part, "split", true));
  if (split) {
    SplitStep at_marks;
    at_marks.pattern = kSpaceMark;
    at_marks.behavior = SplitStep::Behavior::kMergedWithNext;
    spec->splits.push_back(std::move(at_marks));
  }
  return absl::OkStatus();
}

absl::Status ReadPreTokenizer(const Json& part, TokenizerSpec* spec) {
  const std::string type = TypeOf(part);
  if (spec->byte_level) return Unsupported(Cat("pre-tokenizer '", type, "' after ByteLevel"));
  if (spec->splits.size() >= kMaxSteps) return Unsupported("a pre-tokenizer of so many steps");
  SplitStep step;
  if (type == "Digits") {
    BATON_ASSIGN_OR_RETURN(const bool single, BoolOr(part, "individual_digits", false));
    step.pattern = single ? R"(\p{N})" : R"(\p{N}+)";
  } else if (type == "Punctuation") {
    step.pattern = R"([\p{P}$+<=>^`|~])";
    BATON_ASSIGN_OR_RETURN(step.behavior, ReadBehavior(part));
  } else if (type == "Split") {
    BATON_ASSIGN_OR_RETURN(step.pattern, ReadPattern(part, "pre-tokenizer Split"));
    BATON_ASSIGN_OR_RETURN(step.behavior, ReadBehavior(part));
    BATON_ASSIGN_OR_RETURN(step.invert, BoolOr(part, "invert", false));
  } else if (type == "Metaspace") {
    return ReadMetaspace(part, spec);
  } else if (type == "ByteLevel") {
    spec->byte_level = true;
    BATON_ASSIGN_OR_RETURN(const bool prefix, BoolOr(part, "add_prefix_space", true));
    BATON_ASSIGN_OR_RETURN(const bool use_regex, BoolOr(part, "use_regex", true));
    if (prefix) {
      SplitStep space;
      space.kind = SplitStep::Kind::kPrefixSpace;
      spec->splits.push_back(std::move(space));
    }
    if (!use_regex) return absl::OkStatus();
    step.pattern = kGpt2Pattern;
  } else {
    return Unsupported(Cat("pre-tokenizer '", type, "'"));
  }
  spec->splits.push_back(std::move(step));
  return absl::OkStatus();
}

absl::Status ReadPreTokenizers(const Json& part, TokenizerSpec* spec) {
  spec->byte_level = false;
  if (part.is_null()) return absl::OkStatus();
  if (TypeOf(part) != "Sequence" || !At(part, "pretokenizers").is_array()) {
    return ReadPreTokenizer(part, spec);
  }
  for (const Json& inner : At(part, "pretokenizers")) {
    BATON_RETURN_IF_ERROR(ReadPreTokenizer(inner, spec));
  }
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
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& value = At(model, key);
    const bool unset = value.is_null() || (value.is_string() && value.get<std::string>().empty()) ||
                       (value.is_number() && value == 0);
    if (!unset) return Unsupported(Cat("model.", key));
  }
  BATON_ASSIGN_OR_RETURN(spec->byte_fallback, BoolOr(model, "byte_fallback", false));
  if (spec->byte_fallback && spec->byte_level) {
    return Unsupported("model.byte_fallback together with ByteLevel");
  }
  BATON_ASSIGN_OR_RETURN(spec->fuse_unk, BoolOr(model, "fuse_unk", false));
  BATON_ASSIGN_OR_RETURN(spec->ignore_merges, BoolOr(model, "ignore_merges", false));
  BATON_RETURN_IF_ERROR(ReadVocabulary(At(model, "vocab"), spec));
  if (const std::string unk = StringOr(model, "unk_token", ""); !unk.empty()) {
    spec->unk_id = FindToken(*spec, unk);
    if (!spec->unk_id)
      return Malformed(Cat("model.unk_token '", unk, "' is not in the vocabulary"));
  }
  return ReadMerges(At(model, "merges"), spec);
}

absl::Status ReadAddedTokens(const Json& tokens, TokenizerSpec* spec) {
  if (tokens.is_null()) return absl::OkStatus();
  if (!tokens.is_array()) return Malformed("added_tokens must be an array");
  for (const Json& token : tokens) {
    BATON_ASSIGN_OR_RETURN(AddedToken added, tokenizer_json::ReadAddedToken(token));
    BATON_ASSIGN_OR_RETURN(added.id, TokenId(At(token, "id"), added.content));
    spec->added.push_back(std::move(added));
  }
  return absl::OkStatus();
}

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

absl::Status ReadDecoderStep(const Json& part, bool* fused, TokenizerSpec* spec) {
  const std::string type = TypeOf(part);
  DecoderSpec& decoder = spec->decoder;
  if (type == "Replace" && !*fused && !decoder.bytes) {
    const Json& from = At(At(part, "pattern"), "String");
    const Json& to = At(part, "content");
    if (!from.is_string() || from.get<std::string>().empty() || !to.is_string()) {
      return Unsupported("a decoder Replace without a String pattern");
    }
    decoder.replace.emplace_back(from.get<std::string>(), to.get<std::string>());
    return absl::OkStatus();
  }
  if (type == "ByteFallback" && !*fused) {
    decoder.bytes = true;
    return absl::OkStatus();
  }
  if (type == "Fuse") {
    *fused = true;
    return absl::OkStatus();
  }
  const Json& start = At(part, "start");
  if (type == "Strip" && *fused && StringOr(part, "content", "") == " " &&
      At(part, "stop") == Json(0) && start.is_number_integer()) {
    if (start < 0 || start > kMaxStrip) return Malformed("decoder Strip.start is out of range");
    decoder.strip_left = start.get<int>();
    return absl::OkStatus();
  }
  return Unsupported(Cat("decoder '", type, "' at its place"));
}

absl::Status ReadDecoder(const Json& part, TokenizerSpec* spec) {
  const bool sequence = TypeOf(part) == "Sequence" && At(part, "decoders").is_array();
  const Json steps = sequence ? At(part, "decoders") : Json::array({part});
  if (spec->byte_level) {
    for (const Json& step : steps) {
      if (!step.is_null() && TypeOf(step) != "ByteLevel") {
        return Unsupported(Cat("decoder '", TypeOf(step), "' with ByteLevel"));
      }
    }
    return absl::OkStatus();
  }
  if (part.is_null()) return Unsupported("a tokenizer with neither ByteLevel nor a decoder");
  bool fused = false;
  for (const Json& step : steps) BATON_RETURN_IF_ERROR(ReadDecoderStep(step, &fused, spec));
  return absl::OkStatus();
}

absl::Status ReadScores(const Json& scores, TokenizerSpec* spec) {
  if (scores.is_null()) return absl::OkStatus();
  if (!scores.is_array() || scores.size() > static_cast<size_t>(kMaxVocab)) {
    return Malformed("baton.scores must be an array of numbers");
  }
  if (spec->byte_level) return Malformed("baton.scores doesn't go with ByteLevel");
  for (const Json& score : scores) {
    if (!score.is_number() || std::abs(score.get<double>()) > std::numeric_limits<float>::max()) {
      return Malformed("baton.scores must be an array of 32-bit numbers");
    }
    spec->scores.push_back(score.get<float>());
  }
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
  if (const Json& size = At(part, "vocab_size"); !size.is_null()) {
    if (!size.is_number_integer() || size < 0 || size > kMaxVocab) {
      return Malformed("baton.vocab_size is out of range");
    }
    spec->tokens.resize(std::max(spec->tokens.size(), size.get<size_t>()));
  }
  return ReadScores(At(part, "scores"), spec);
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
  BATON_RETURN_IF_ERROR(ReadDecoder(At(root, "decoder"), &spec));
  BATON_RETURN_IF_ERROR(ApplyTokenizerConfig(tokenizer_config_json, /*with_added=*/false, &spec));
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

}  // namespace baton
