#include "common/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/tokenizer/added_tokens.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/bpe_builder.h"
#include "common/tokenizer/detokenizer.h"
#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/pre_tokenizer.h"
#include "common/tokenizer/tokenizer_spec.h"
#include "common/tokenizer/utf8.h"

namespace baton {

struct Tokenizer::Impl {
  Impl(Normalizer change, PreTokenizer split, BpeVocabulary vocabulary)
      : normalizer(std::move(change)),
        pre_tokenizer(std::move(split)),
        bpe(std::move(vocabulary)) {}

  absl::Status AddTokens(const TokenizerSpec& spec);

  // A part of the text between added tokens that are found before normalising. `at_start`: it
  // begins the whole text.
  absl::Status EncodePart(std::string_view text, bool at_start, bool parse_special,
                          std::vector<int32_t>* ids) const;

  const Normalizer normalizer;
  const PreTokenizer pre_tokenizer;
  const BpeModel bpe;
  AddedTokens raw_added;         // looked for in the text as given
  AddedTokens normalized_added;  // in the normalised text
  // The first, and special ones of the second: for text that parses them in places only, which
  // normalised text doesn't show any more.
  AddedTokens mixed_added;
  std::vector<std::string> token_bytes;  // by id
  std::vector<bool> special;             // by id
  absl::flat_hash_map<std::string, int32_t> by_text;
  std::optional<int32_t> bos_id;
  std::optional<int32_t> eos_id;
  bool add_bos = false;
  int strip_left = 0;
  std::string serialized;
  std::string digest;
  std::string content_digest;
};

absl::Status Tokenizer::Impl::AddTokens(const TokenizerSpec& spec) {
  special.assign(spec.tokens.size(), false);
  token_bytes.reserve(spec.tokens.size());
  for (const std::string& token : spec.tokens) token_bytes.push_back(BytesOfToken(spec, token));
  for (const AddedToken& token : spec.added) {
    const auto id = static_cast<size_t>(token.id);
    special[id] = token.special;
    std::string text = token.content;
    if (token.normalized && spec.scores.empty()) {
      BATON_ASSIGN_OR_RETURN(text, normalizer.Apply(text, /*at_start=*/true));
    } else if (token.normalized) {  // a user-defined piece stands in the normalised text as it is
      text = absl::StrReplaceAll(text, {{" ", AbslView(kSpaceMark)}});
    }
    // Such a token means the text it is found by, as in `tokenizers`.
    token_bytes[id] = BytesOfAddedToken(spec, text);
    if (!token.normalized) {
      raw_added.Add(token, text);
    } else {
      normalized_added.Add(token, text);
    }
    if (!token.normalized || token.special) mixed_added.Add(token, token.content);
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::Impl::EncodePart(std::string_view text, bool at_start, bool parse_special,
                                         std::vector<int32_t>* ids) const {
  std::string changed;
  if (!normalizer.empty()) {
    BATON_ASSIGN_OR_RETURN(changed, normalizer.Apply(text, at_start));
    text = changed;
  }
  const auto encode = [&](std::string_view part, bool first) {
    return pre_tokenizer.Split(part, first, [&](std::string_view word) {
      bpe.Encode(word, ids);
      return absl::OkStatus();
    });
  };
  if (normalized_added.empty()) return encode(text, at_start);
  for (const auto& part : normalized_added.Find(text, {{0, text.size(), parse_special}})) {
    if (part.id >= 0) {
      ids->push_back(part.id);
      continue;
    }
    BATON_RETURN_IF_ERROR(
        encode(text.substr(part.begin, part.end - part.begin), at_start && part.begin == 0));
  }
  return absl::OkStatus();
}

Tokenizer::Tokenizer(std::unique_ptr<const Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

namespace {

// Added tokens take their place among the tokens; two tokens of one text or id are an error.
absl::StatusOr<absl::flat_hash_map<std::string, int32_t>> IndexTokens(TokenizerSpec* spec) {
  std::sort(spec->added.begin(), spec->added.end(),
            [](const AddedToken& a, const AddedToken& b) { return a.id < b.id; });
  for (size_t i = 0; i < spec->added.size(); ++i) {
    const AddedToken& token = spec->added[i];
    const auto index = static_cast<size_t>(token.id);
    if (index >= spec->tokens.size()) spec->tokens.resize(index + 1);
    std::string& text = spec->tokens[index];
    const bool twice = i > 0 && spec->added[i - 1].id == token.id;
    if (twice || (!text.empty() && text != token.content)) {
      return absl::InvalidArgumentError(Cat("added token '", token.content, "' has the id ",
                                            token.id, " of '",
                                            twice ? spec->added[i - 1].content : text, "'"));
    }
    text = token.content;
  }
  absl::flat_hash_map<std::string, int32_t> ids;
  ids.reserve(spec->tokens.size());
  for (size_t id = 0; id < spec->tokens.size(); ++id) {
    if (spec->tokens[id].empty()) continue;
    const auto [it, added] = ids.try_emplace(spec->tokens[id], static_cast<int32_t>(id));
    if (!added) {
      return absl::InvalidArgumentError(
          Cat("token '", spec->tokens[id], "' has the ids ", it->second, " and ", id));
    }
  }
  return ids;
}

absl::Status CheckId(const char* name, const std::optional<int32_t>& id, size_t vocab) {
  if (id.has_value() && static_cast<size_t>(*id) >= vocab) {
    return absl::InvalidArgumentError(
        Cat(name, " id ", *id, " is outside the vocabulary of ", vocab));
  }
  return absl::OkStatus();
}

// Leaves out what decides nothing, so that equal tokenizers have equal specs.
void Canonicalise(TokenizerSpec* spec) {
  if (spec->unk_id && spec->tokens[static_cast<size_t>(*spec->unk_id)].empty()) {
    spec->unk_id.reset();
  }
  if (!spec->unk_id) spec->fuse_unk = false;
  const auto normalized = [](const AddedToken& token) { return token.normalized; };
  // Text that isn't changed is the same before and after.
  if (spec->normalizer.empty() && std::all_of(spec->added.begin(), spec->added.end(), normalized)) {
    for (AddedToken& token : spec->added) token.normalized = false;
  }
  if (!spec->scores.empty()) spec->scores.resize(spec->tokens.size());
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromSpec(TokenizerSpec spec) {
  BATON_ASSIGN_OR_RETURN(auto ids, IndexTokens(&spec));
  if (ids.empty()) return absl::InvalidArgumentError("the tokenizer has no tokens");
  BATON_RETURN_IF_ERROR(CheckId("BOS", spec.bos_id, spec.tokens.size()));
  BATON_RETURN_IF_ERROR(CheckId("EOS", spec.eos_id, spec.tokens.size()));
  BATON_RETURN_IF_ERROR(CheckId("unknown", spec.unk_id, spec.tokens.size()));
  if (spec.add_bos && !spec.bos_id.has_value()) {
    return absl::InvalidArgumentError("the tokenizer adds BOS but has no BOS id");
  }
  Canonicalise(&spec);
  BATON_ASSIGN_OR_RETURN(BpeVocabulary vocabulary, BuildBpeVocabulary(spec, ids));
  BATON_ASSIGN_OR_RETURN(Normalizer normalizer, Normalizer::Create(spec.normalizer));
  BATON_ASSIGN_OR_RETURN(PreTokenizer pre, PreTokenizer::Create(spec.splits));
  auto impl = std::make_unique<Impl>(std::move(normalizer), std::move(pre), std::move(vocabulary));
  BATON_RETURN_IF_ERROR(impl->AddTokens(spec));
  impl->by_text = std::move(ids);
  impl->bos_id = spec.bos_id;
  impl->eos_id = spec.eos_id;
  impl->add_bos = spec.add_bos;
  impl->strip_left = spec.decoder.strip_left;
  impl->serialized = SpecToJson(spec);
  impl->digest = SpecDigest(spec);
  impl->content_digest = HexDigest(impl->serialized);
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(
    std::string_view tokenizer_json, std::string_view tokenizer_config_json) {
  BATON_ASSIGN_OR_RETURN(TokenizerSpec spec, SpecFromJson(tokenizer_json, tokenizer_config_json));
  return FromSpec(std::move(spec));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromVocabulary(
    std::string_view bytes, std::string_view tokenizer_config_json) {
  // A SentencePiece model opens with the tag of its first piece, which is a line feed; a line of
  // base64 does not.
  const bool sentence_piece = bytes.starts_with('\n');
  BATON_ASSIGN_OR_RETURN(TokenizerSpec spec,
                         sentence_piece ? SpecFromSentencePiece(bytes, tokenizer_config_json)
                                        : SpecFromTiktoken(bytes, tokenizer_config_json));
  return FromSpec(std::move(spec));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const GgufVocab& vocab) {
  BATON_ASSIGN_OR_RETURN(TokenizerSpec spec, SpecFromGguf(vocab));
  return FromSpec(std::move(spec));
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodePieces(
    absl::Span<const TextPiece> pieces) const {
  std::string joined;
  std::vector<AddedTokens::Range> ranges;
  size_t total = 0;
  bool mixed = false;
  for (const TextPiece& piece : pieces) {
    if (const auto bad = FirstInvalidUtf8(piece.text)) {
      return absl::InvalidArgumentError(Cat("text is not valid UTF-8 at byte ", *bad));
    }
    mixed = mixed || piece.parse_special != pieces[0].parse_special;
    ranges.push_back({total, total + piece.text.size(), piece.parse_special, piece.literal});
    total += piece.text.size();
  }
  if (total > kMaxEncodeBytes) {
    return absl::InvalidArgumentError(
        Cat("text of ", total, " bytes is longer than the limit of ", kMaxEncodeBytes));
  }
  std::vector<int32_t> ids;
  if (total == 0) return ids;
  if (pieces.size() > 1) {
    for (const TextPiece& piece : pieces) joined += piece.text;
  }
  const std::string_view text = pieces.size() > 1 ? std::string_view(joined) : pieces[0].text;
  const bool parse_normalized = !mixed && pieces[0].parse_special;
  const AddedTokens& added = mixed ? impl_->mixed_added : impl_->raw_added;
  for (const auto& part : added.Find(text, ranges)) {
    if (part.id >= 0) {
      ids.push_back(part.id);
      continue;
    }
    BATON_RETURN_IF_ERROR(impl_->EncodePart(text.substr(part.begin, part.end - part.begin),
                                            part.begin == 0, parse_normalized, &ids));
  }
  return ids;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(std::string_view text,
                                                       const EncodeOptions& options) const {
  BATON_ASSIGN_OR_RETURN(std::vector<int32_t> ids, EncodePieces({{text, options.parse_special}}));
  if (options.add_bos && impl_->add_bos) ids.insert(ids.begin(), *impl_->bos_id);
  return ids;
}

absl::StatusOr<std::string> Tokenizer::Decode(absl::Span<const int32_t> ids,
                                              const DecodeOptions& options) const {
  std::string text;
  Detokenizer detokenizer(*this, options.skip_special, options.continues_text);
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size()) {
      return absl::OutOfRangeError(Cat("token id ", ids[i], " at index ", i,
                                       " is outside the vocabulary of ", vocab_size()));
    }
    text += detokenizer.Push(ids[i]);
  }
  text += detokenizer.Flush();
  return text;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  if (id < 0 || id >= vocab_size()) return {};
  return impl_->token_bytes[static_cast<size_t>(id)];
}

int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->token_bytes.size()); }
std::optional<int32_t> Tokenizer::bos_id() const { return impl_->bos_id; }
std::optional<int32_t> Tokenizer::eos_id() const { return impl_->eos_id; }
bool Tokenizer::adds_bos() const { return impl_->add_bos; }

bool Tokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && id < vocab_size() && impl_->special[static_cast<size_t>(id)];
}

std::optional<int32_t> Tokenizer::TokenToId(std::string_view token) const {
  const auto it = impl_->by_text.find(AbslView(token));
  if (it == impl_->by_text.end()) return std::nullopt;
  return it->second;
}

int Tokenizer::leading_spaces() const { return impl_->strip_left; }

const std::string& Tokenizer::Serialize() const { return impl_->serialized; }
const std::string& Tokenizer::digest() const { return impl_->digest; }
const std::string& Tokenizer::content_digest() const { return impl_->content_digest; }

}  // namespace baton
