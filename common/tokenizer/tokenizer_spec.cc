// What all file formats share.
#include "common/tokenizer/tokenizer_spec.h"

#include <algorithm>
#include <charconv>
#include <exception>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/tokenizer/json_access.h"

#define XXH_INLINE_ALL
#include "xxhash.h"

namespace baton {
namespace {

using tokenizer_json::At;
using tokenizer_json::Json;

absl::Status Malformed(std::string_view what) {
  return absl::InvalidArgumentError(Cat("tokenizer_config.json: ", what));
}

// "bos_token" is a string or {"content": …}.
absl::Status ReadNamedToken(const Json& config, const char* key, const TokenizerSpec& spec,
                            std::optional<int32_t>* id) {
  const Json& value = At(config, key);
  if (value.is_null()) return absl::OkStatus();
  const Json& text = value.is_object() ? At(value, "content") : value;
  if (!text.is_string()) return Malformed(Cat(key, " must be a token's text"));
  *id = FindToken(spec, text.get<std::string>());
  if (!id->has_value()) {
    return Malformed(Cat(key, " '", text.get<std::string>(), "' is not in the vocabulary"));
  }
  return absl::OkStatus();
}

absl::Status ReadAddedTokensDecoder(const Json& entries, TokenizerSpec* spec) {
  if (entries.is_null()) return absl::OkStatus();
  if (!entries.is_object()) return Malformed("added_tokens_decoder must be an object");
  for (const auto& [key, entry] : entries.items()) {
    int32_t id = -1;
    if (!absl::SimpleAtoi(key, &id) || id < 0 || id >= kMaxVocab) {
      return Malformed(Cat("added_tokens_decoder: '", key, "' is not a token id"));
    }
    BATON_ASSIGN_OR_RETURN(AddedToken token, tokenizer_json::ReadAddedToken(entry));
    token.id = id;
    const auto known = std::find_if(spec->added.begin(), spec->added.end(),
                                    [id](const AddedToken& other) { return other.id == id; });
    if (known == spec->added.end()) {
      spec->added.push_back(std::move(token));
    } else if (known->content != token.content) {
      return Malformed(Cat("added_tokens_decoder: '", token.content, "' has the id ", id, " of '",
                           known->content, "'"));
    } else {
      *known = std::move(token);
    }
  }
  return absl::OkStatus();
}

absl::Status ReadConfig(std::string_view text, bool with_added, TokenizerSpec* spec) {
  const Json config = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) return Malformed("not a JSON object");
  if (with_added) {
    BATON_RETURN_IF_ERROR(ReadAddedTokensDecoder(At(config, "added_tokens_decoder"), spec));
  }
  BATON_RETURN_IF_ERROR(ReadNamedToken(config, "bos_token", *spec, &spec->bos_id));
  BATON_RETURN_IF_ERROR(ReadNamedToken(config, "eos_token", *spec, &spec->eos_id));
  const Json& add_bos = At(config, "add_bos_token");
  if (add_bos.is_null()) return absl::OkStatus();
  if (!add_bos.is_boolean()) return Malformed("add_bos_token must be true or false");
  spec->add_bos = add_bos.get<bool>();
  return absl::OkStatus();
}

// Length-prefixed, so that no two different specs give the same bytes.
class DigestWriter {
 public:
  template <typename T>
  void Number(T value) {
    const auto number = static_cast<uint64_t>(value);
    bytes_.append(reinterpret_cast<const char*>(&number), sizeof(number));
  }
  void Text(std::string_view text) {
    Number(text.size());
    bytes_.append(text);
  }
  std::string Digest() const { return HexDigest(bytes_); }

 private:
  std::string bytes_;
};

void WriteSteps(const TokenizerSpec& spec, DigestWriter* writer) {
  writer->Number(spec.normalizer.size());
  for (const NormalizerStep& step : spec.normalizer) {
    writer->Number(step.kind);
    writer->Text(step.pattern);
    writer->Text(step.content);
    writer->Number(step.dummy_prefix);
    writer->Number(step.collapse_spaces);
  }
  writer->Number(spec.splits.size());
  for (const SplitStep& step : spec.splits) {
    writer->Number(step.kind);
    writer->Text(step.pattern);
    writer->Number(step.behavior);
    writer->Number(step.invert);
    writer->Number(step.prefix);
  }
  writer->Number(spec.decoder.replace.size());
  for (const auto& [from, to] : spec.decoder.replace) {
    writer->Text(from);
    writer->Text(to);
  }
  writer->Number(spec.decoder.bytes);
  writer->Number(spec.decoder.strip_left);
}

}  // namespace

absl::Status ApplyTokenizerConfig(std::string_view tokenizer_config_json, bool with_added,
                                  TokenizerSpec* spec) {
  if (tokenizer_config_json.empty()) return absl::OkStatus();
  try {
    return ReadConfig(tokenizer_config_json, with_added, spec);
  } catch (const std::exception& e) {
    return Malformed(e.what());
  }
}

void ApplySentencePieceRules(bool dummy_prefix, bool collapse_spaces, TokenizerSpec* spec) {
  NormalizerStep step;
  step.kind = NormalizerStep::Kind::kSentencePiece;
  step.dummy_prefix = dummy_prefix;
  step.collapse_spaces = collapse_spaces;
  spec->normalizer = {step};
  spec->byte_level = false;
  spec->fuse_unk = true;
  spec->decoder.replace = {{std::string(kSpaceMark), " "}};
  spec->decoder.bytes = spec->byte_fallback;
  spec->decoder.strip_left = collapse_spaces ? kMaxStrip : dummy_prefix ? 1 : 0;
}

std::optional<int32_t> FindToken(const TokenizerSpec& spec, std::string_view text) {
  for (const AddedToken& token : spec.added) {
    if (token.content == text) return token.id;
  }
  const auto it = std::find(spec.tokens.begin(), spec.tokens.end(), text);
  if (it == spec.tokens.end() || text.empty()) return std::nullopt;
  return static_cast<int32_t>(it - spec.tokens.begin());
}

std::vector<int32_t> ScoreRanks(const TokenizerSpec& spec) {
  std::vector<int32_t> ranks(spec.tokens.size(), 0);
  for (const AddedToken& token : spec.added) ranks[static_cast<size_t>(token.id)] = -1;
  std::vector<size_t> order;
  for (size_t id = 0; id < ranks.size(); ++id) {
    const std::string& token = spec.tokens[id];
    if (token.empty() || (spec.byte_fallback && ByteOfToken(token).has_value())) ranks[id] = -1;
    if (id < spec.scores.size() && ranks[id] >= 0) order.push_back(id);
  }
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return spec.scores[a] > spec.scores[b]; });
  int32_t rank = 0;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && spec.scores[order[i]] != spec.scores[order[i - 1]]) ++rank;
    ranks[order[i]] = rank;
  }
  return ranks;
}

std::optional<uint8_t> ByteOfToken(std::string_view token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  uint8_t byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return byte;
}

std::string ByteTokenText(uint8_t byte) {
  constexpr std::string_view kDigits = "0123456789ABCDEF";
  std::string text = "<0x";
  text.push_back(kDigits[byte >> 4]);
  text.push_back(kDigits[byte & 15]);
  text.push_back('>');
  return text;
}

std::string HexDigest(std::string_view bytes) {
  const XXH128_hash_t hash = XXH3_128bits(bytes.data(), bytes.size());
  return Cat(absl::Hex(hash.high64, absl::kZeroPad16), absl::Hex(hash.low64, absl::kZeroPad16));
}

std::string SpecDigest(const TokenizerSpec& spec) {
  DigestWriter writer;
  writer.Text("baton tokenizer 2");
  WriteSteps(spec, &writer);
  writer.Number(spec.byte_level);
  writer.Number(spec.ignore_merges);
  writer.Number(spec.unk_id.value_or(-1));
  writer.Number(spec.fuse_unk);
  writer.Number(spec.byte_fallback);
  // Ids without a token at the end (a vocabulary padded to a round size) decide nothing.
  size_t tokens = spec.tokens.size();
  while (tokens > 0 && spec.tokens[tokens - 1].empty()) --tokens;
  writer.Number(tokens);
  for (size_t id = 0; id < tokens; ++id) writer.Text(spec.tokens[id]);
  writer.Number(spec.merges.size());
  for (const auto& [left, right] : spec.merges) {
    writer.Text(left);
    writer.Text(right);
  }
  writer.Number(!spec.scores.empty());
  if (!spec.scores.empty()) {
    const std::vector<int32_t> ranks = ScoreRanks(spec);
    for (size_t id = 0; id < tokens; ++id) writer.Number(ranks[id]);
  }
  writer.Number(spec.added.size());
  for (const AddedToken& token : spec.added) {
    writer.Number(token.id);
    writer.Text(token.content);
    const std::array<bool, 5> flags = {token.special, token.normalized, token.single_word,
                                       token.lstrip, token.rstrip};
    for (bool flag : flags) writer.Number(flag);
  }
  return writer.Digest();
}

}  // namespace baton
