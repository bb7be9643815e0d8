// TokenizerSpec -> a canonical tokenizer.json. What Hugging Face's format has no word for goes into
// "baton" and a normalizer "SentencePiece".
#include <utility>

#include "common/tokenizer/json_access.h"
#include "common/tokenizer/tokenizer_spec.h"

namespace baton {
namespace {

using tokenizer_json::Json;

Json StepToJson(const NormalizerStep& step) {
  using Kind = NormalizerStep::Kind;
  switch (step.kind) {
    case Kind::kNfc:
      return {{"type", "NFC"}};
    case Kind::kNfd:
      return {{"type", "NFD"}};
    case Kind::kNfkc:
      return {{"type", "NFKC"}};
    case Kind::kNfkd:
      return {{"type", "NFKD"}};
    case Kind::kPrepend:
      return {{"type", "Prepend"}, {"prepend", step.content}};
    case Kind::kReplace:
      return {
          {"type", "Replace"}, {"pattern", {{"Regex", step.pattern}}}, {"content", step.content}};
    case Kind::kSentencePiece:
      break;
  }
  return {{"type", "SentencePiece"},
          {"add_dummy_prefix", step.dummy_prefix},
          {"remove_extra_whitespaces", step.collapse_spaces}};
}

Json NormalizerToJson(const TokenizerSpec& spec) {
  if (spec.normalizer.empty()) return nullptr;
  if (spec.normalizer.size() == 1) return StepToJson(spec.normalizer[0]);
  Json steps = Json::array();
  for (const NormalizerStep& step : spec.normalizer) steps.push_back(StepToJson(step));
  return {{"type", "Sequence"}, {"normalizers", std::move(steps)}};
}

const char* BehaviorName(SplitStep::Behavior behavior) {
  switch (behavior) {
    case SplitStep::Behavior::kIsolated:
      return "Isolated";
    case SplitStep::Behavior::kRemoved:
      return "Removed";
    case SplitStep::Behavior::kMergedWithPrevious:
      return "MergedWithPrevious";
    case SplitStep::Behavior::kMergedWithNext:
      return "MergedWithNext";
    case SplitStep::Behavior::kContiguous:
      break;
  }
  return "Contiguous";
}

const char* PrefixName(SplitStep::Prefix prefix) {
  switch (prefix) {
    case SplitStep::Prefix::kNever:
      return "never";
    case SplitStep::Prefix::kFirst:
      return "first";
    case SplitStep::Prefix::kAlways:
      break;
  }
  return "always";
}

Json PreTokenizerToJson(const TokenizerSpec& spec) {
  Json steps = Json::array();
  Json byte_level = {{"type", "ByteLevel"},
                     {"add_prefix_space", false},
                     {"trim_offsets", true},
                     {"use_regex", false}};
  for (const SplitStep& step : spec.splits) {
    // A space goes in where ByteLevel would put it, before ByteLevel's own pattern.
    if (byte_level["add_prefix_space"] == true) {
      byte_level["use_regex"] = true;
      break;
    }
    switch (step.kind) {
      case SplitStep::Kind::kSplit:
        steps.push_back({{"type", "Split"},
                         {"pattern", {{"Regex", step.pattern}}},
                         {"behavior", BehaviorName(step.behavior)},
                         {"invert", step.invert}});
        break;
      case SplitStep::Kind::kPrefixSpace:
        byte_level["add_prefix_space"] = true;
        break;
      case SplitStep::Kind::kMetaspace:
        steps.push_back({{"type", "Metaspace"},
                         {"replacement", kSpaceMark},
                         {"prepend_scheme", PrefixName(step.prefix)},
                         {"split", false}});
        break;
    }
  }
  if (spec.byte_level) steps.push_back(std::move(byte_level));
  if (steps.empty()) return nullptr;
  return {{"type", "Sequence"}, {"pretokenizers", std::move(steps)}};
}

Json DecoderToJson(const TokenizerSpec& spec) {
  if (spec.byte_level) {
    return {{"type", "ByteLevel"},
            {"add_prefix_space", true},
            {"trim_offsets", true},
            {"use_regex", true}};
  }
  Json steps = Json::array();
  for (const auto& [from, to] : spec.decoder.replace) {
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", from}}}, {"content", to}});
  }
  if (spec.decoder.bytes) steps.push_back({{"type", "ByteFallback"}});
  steps.push_back({{"type", "Fuse"}});
  if (spec.decoder.strip_left > 0) {
    steps.push_back(
        {{"type", "Strip"}, {"content", " "}, {"start", spec.decoder.strip_left}, {"stop", 0}});
  }
  return {{"type", "Sequence"}, {"decoders", std::move(steps)}};
}

Json AddedToJson(const TokenizerSpec& spec) {
  Json added = Json::array();
  for (const AddedToken& token : spec.added) {
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"special", token.special},
                     {"normalized", token.normalized},
                     {"single_word", token.single_word},
                     {"lstrip", token.lstrip},
                     {"rstrip", token.rstrip}});
  }
  return added;
}

Json ModelToJson(const TokenizerSpec& spec) {
  Json vocab = Json::object();
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    if (!spec.tokens[id].empty()) vocab[spec.tokens[id]] = id;
  }
  Json merges = Json::array();
  for (const auto& [left, right] : spec.merges) merges.push_back({left, right});
  Json unk;
  if (spec.unk_id) unk = spec.tokens[static_cast<size_t>(*spec.unk_id)];
  return {{"type", "BPE"},
          {"unk_token", std::move(unk)},
          {"fuse_unk", spec.fuse_unk},
          {"byte_fallback", spec.byte_fallback},
          {"ignore_merges", spec.ignore_merges},
          {"vocab", std::move(vocab)},
          {"merges", std::move(merges)}};
}

}  // namespace

std::string SpecToJson(const TokenizerSpec& spec) {
  Json baton = {{"add_bos", spec.add_bos}, {"vocab_size", spec.tokens.size()}};
  if (spec.bos_id) baton["bos_id"] = *spec.bos_id;
  if (spec.eos_id) baton["eos_id"] = *spec.eos_id;
  if (!spec.scores.empty()) baton["scores"] = spec.scores;
  const Json root = {{"version", "1.0"},
                     {"normalizer", NormalizerToJson(spec)},
                     {"pre_tokenizer", PreTokenizerToJson(spec)},
                     {"post_processor", nullptr},
                     {"decoder", DecoderToJson(spec)},
                     {"added_tokens", AddedToJson(spec)},
                     {"model", ModelToJson(spec)},
                     {"baton", std::move(baton)}};
  return root.dump();
}

}  // namespace baton
