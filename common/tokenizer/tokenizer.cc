#include "common/tokenizer/tokenizer.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/pre_tokenizer.h"
#include "common/tokenizer/tokenizer_spec.h"
#include "common/tokenizer/utf8.h"
#include "unicode/bytestream.h"
#include "unicode/normalizer2.h"
#include "unicode/stringpiece.h"

#define XXH_INLINE_ALL
#include "xxhash.h"

namespace baton {
namespace {

// Finds added tokens in text, the longest at each place.
class AddedTokenTrie {
 public:
  void Add(std::string_view content, int32_t id, bool special) {
    int32_t at = 0;
    for (char c : content) {
      const auto next = static_cast<int32_t>(nodes_.size());
      const auto [it, added] = children_.try_emplace(Key(at, c), next);
      if (added) nodes_.emplace_back();
      at = it->second;
    }
    nodes_[static_cast<size_t>(at)] = {id, special};
    starts_[static_cast<uint8_t>(content[0])] = true;
  }

  struct Match {
    int32_t id = -1;  // -1: none
    size_t size = 0;
  };

  // The longest token at the beginning of `text`.
  Match At(std::string_view text, bool parse_special) const {
    Match best;
    if (!starts_[static_cast<uint8_t>(text[0])]) return best;
    int32_t at = 0;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto it = children_.find(Key(at, text[i]));
      if (it == children_.end()) break;
      at = it->second;
      const Node& node = nodes_[static_cast<size_t>(at)];
      if (node.id >= 0 && (parse_special || !node.special)) best = {node.id, i + 1};
    }
    return best;
  }

 private:
  struct Node {
    int32_t id = -1;
    bool special = false;
  };
  static uint64_t Key(int32_t node, char c) {
    return static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(c);
  }

  std::vector<Node> nodes_{1};
  absl::flat_hash_map<uint64_t, int32_t> children_;
  std::array<bool, 256> starts_{};
};

absl::StatusOr<std::string> ToNfc(std::string_view text) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* nfc = icu::Normalizer2::getNFCInstance(error);
  if (U_FAILURE(error)) return absl::InternalError("ICU has no NFC data");
  std::string out;
  icu::StringByteSink<std::string> sink(&out);
  nfc->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink,
                     nullptr, error);
  if (U_FAILURE(error)) {
    return absl::InternalError(Cat("NFC normalisation: ", u_errorName(error)));
  }
  return out;
}

}  // namespace

struct Tokenizer::Impl {
  Impl(TokenizerSpec spec, PreTokenizer pre, std::vector<std::string> bytes,
       const std::vector<BpeModel::Merge>& merges, const std::array<int32_t, 256>& byte_tokens,
       absl::flat_hash_map<std::string, int32_t> whole_words,
       absl::flat_hash_map<std::string, int32_t> ids)
      : pre_tokenizer(std::move(pre)),
        bpe(merges, byte_tokens, std::move(whole_words)),
        token_bytes(std::move(bytes)),
        special(token_bytes.size(), false),
        by_text(std::move(ids)),
        bos_id(spec.bos_id),
        eos_id(spec.eos_id),
        add_bos(spec.add_bos),
        nfc(spec.nfc),
        add_prefix_space(spec.add_prefix_space),
        serialized(SpecToJson(spec)),
        digest(SpecDigest(spec)),
        content_digest(HexDigest(serialized)) {
    for (const AddedToken& token : spec.added) {
      added.Add(token.content, token.id, token.special);
      special[static_cast<size_t>(token.id)] = token.special;
    }
  }

  absl::Status EncodeOrdinary(std::string_view text, std::vector<int32_t>* ids) const {
    if (text.empty()) return absl::OkStatus();
    std::string changed;
    if (nfc) {
      BATON_ASSIGN_OR_RETURN(changed, ToNfc(text));
      text = changed;
    }
    if (add_prefix_space && !text.starts_with(' ')) {
      changed = Cat(" ", text);
      text = changed;
    }
    return pre_tokenizer.Split(text, [&](std::string_view word) {
      bpe.Encode(word, ids);
      return absl::OkStatus();
    });
  }

  const PreTokenizer pre_tokenizer;
  const BpeModel bpe;
  AddedTokenTrie added;
  const std::vector<std::string> token_bytes;  // by id
  std::vector<bool> special;                   // by id
  const absl::flat_hash_map<std::string, int32_t> by_text;
  const std::optional<int32_t> bos_id;
  const std::optional<int32_t> eos_id;
  const bool add_bos;
  const bool nfc;
  const bool add_prefix_space;
  const std::string serialized;
  const std::string digest;
  const std::string content_digest;
};

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

absl::StatusOr<std::vector<BpeModel::Merge>> ResolveMerges(
    const TokenizerSpec& spec, const absl::flat_hash_map<std::string, int32_t>& ids) {
  std::vector<BpeModel::Merge> merges;
  merges.reserve(spec.merges.size());
  for (size_t i = 0; i < spec.merges.size(); ++i) {
    const auto& [left, right] = spec.merges[i];
    std::array<int32_t, 3> found;
    const std::array<std::string, 3> texts = {left, right, left + right};
    for (size_t k = 0; k < texts.size(); ++k) {
      const auto it = ids.find(texts[k]);
      if (it == ids.end()) {
        return absl::InvalidArgumentError(
            Cat("merge ", i, " needs '", texts[k], "', which is not in the vocabulary"));
      }
      found[k] = it->second;
    }
    merges.push_back({found[0], found[1], found[2]});
  }
  return merges;
}

absl::Status CheckId(const char* name, const std::optional<int32_t>& id, size_t vocab) {
  if (id.has_value() && static_cast<size_t>(*id) >= vocab) {
    return absl::InvalidArgumentError(
        Cat(name, " id ", *id, " is outside the vocabulary of ", vocab));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromSpec(TokenizerSpec spec) {
  BATON_ASSIGN_OR_RETURN(auto ids, IndexTokens(&spec));
  if (ids.empty()) return absl::InvalidArgumentError("the tokenizer has no tokens");
  BATON_ASSIGN_OR_RETURN(const auto merges, ResolveMerges(spec, ids));
  BATON_RETURN_IF_ERROR(CheckId("BOS", spec.bos_id, spec.tokens.size()));
  BATON_RETURN_IF_ERROR(CheckId("EOS", spec.eos_id, spec.tokens.size()));
  if (spec.add_bos && !spec.bos_id.has_value()) {
    return absl::InvalidArgumentError("the tokenizer adds BOS but has no BOS id");
  }
  std::vector<std::string> bytes(spec.tokens.size());
  std::vector<bool> is_added(spec.tokens.size(), false);
  for (const AddedToken& token : spec.added) is_added[static_cast<size_t>(token.id)] = true;
  absl::flat_hash_map<std::string, int32_t> whole_words;
  for (size_t id = 0; id < bytes.size(); ++id) {
    auto spelled = is_added[id] ? std::nullopt : ByteLevelBytes(spec.tokens[id]);
    bytes[id] = spelled.has_value() ? *std::move(spelled) : spec.tokens[id];
    // Added tokens are left out: ordinary text must never become a special id.
    if (spec.ignore_merges && !is_added[id] && !bytes[id].empty()) {
      whole_words.try_emplace(bytes[id], static_cast<int32_t>(id));
    }
  }
  std::array<int32_t, 256> byte_tokens;
  for (int b = 0; b < 256; ++b) {
    const auto it = ids.find(ByteLevelSpelling(static_cast<uint8_t>(b)));
    byte_tokens[static_cast<size_t>(b)] = it == ids.end() ? -1 : it->second;
  }
  BATON_ASSIGN_OR_RETURN(PreTokenizer pre, PreTokenizer::Create(spec.split_patterns));
  return std::unique_ptr<Tokenizer>(new Tokenizer(
      std::make_unique<Impl>(std::move(spec), std::move(pre), std::move(bytes), merges, byte_tokens,
                             std::move(whole_words), std::move(ids))));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromJson(
    std::string_view tokenizer_json, std::string_view tokenizer_config_json) {
  BATON_ASSIGN_OR_RETURN(TokenizerSpec spec, SpecFromJson(tokenizer_json, tokenizer_config_json));
  return FromSpec(std::move(spec));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::FromGguf(const GgufVocab& vocab) {
  BATON_ASSIGN_OR_RETURN(TokenizerSpec spec, SpecFromGguf(vocab));
  return FromSpec(std::move(spec));
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::EncodePieces(
    absl::Span<const TextPiece> pieces) const {
  size_t total = 0;
  for (const TextPiece& piece : pieces) {
    if (const auto bad = FirstInvalidUtf8(piece.text)) {
      return absl::InvalidArgumentError(Cat("text is not valid UTF-8 at byte ", *bad));
    }
    total += piece.text.size();
  }
  if (total > kMaxEncodeBytes) {
    return absl::InvalidArgumentError(
        Cat("text of ", total, " bytes is longer than the limit of ", kMaxEncodeBytes));
  }
  std::vector<int32_t> ids;
  std::string ordinary;  // text since the last added token, over piece boundaries
  for (const TextPiece& piece : pieces) {
    size_t done = 0;
    for (size_t i = 0; i < piece.text.size();) {
      const auto match = impl_->added.At(piece.text.substr(i), piece.parse_special);
      if (match.id < 0) {
        ++i;
        continue;
      }
      ordinary.append(piece.text, done, i - done);
      BATON_RETURN_IF_ERROR(impl_->EncodeOrdinary(ordinary, &ids));
      ordinary.clear();
      ids.push_back(match.id);
      i += match.size;
      done = i;
    }
    ordinary.append(piece.text, done);
  }
  BATON_RETURN_IF_ERROR(impl_->EncodeOrdinary(ordinary, &ids));
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
  Utf8Repairer repairer;
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] < 0 || ids[i] >= vocab_size()) {
      return absl::OutOfRangeError(Cat("token id ", ids[i], " at index ", i,
                                       " is outside the vocabulary of ", vocab_size()));
    }
    if (options.skip_special && IsSpecial(ids[i])) continue;
    repairer.Push(TokenBytes(ids[i]), &text);
  }
  repairer.Flush(&text);
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

const std::string& Tokenizer::Serialize() const { return impl_->serialized; }
const std::string& Tokenizer::digest() const { return impl_->digest; }
const std::string& Tokenizer::content_digest() const { return impl_->content_digest; }

namespace {

std::string Hex(XXH128_hash_t hash) {
  return Cat(absl::Hex(hash.high64, absl::kZeroPad16), absl::Hex(hash.low64, absl::kZeroPad16));
}

// Length-prefixed, so that no two different specs give the same bytes.
class DigestWriter {
 public:
  void Number(uint64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), 8); }
  void Text(std::string_view text) {
    Number(text.size());
    bytes_.append(text);
  }
  std::string Digest() const { return HexDigest(bytes_); }

 private:
  std::string bytes_;
};

}  // namespace

std::string HexDigest(std::string_view bytes) {
  return Hex(XXH3_128bits(bytes.data(), bytes.size()));
}

std::string SpecDigest(const TokenizerSpec& spec) {
  DigestWriter writer;
  writer.Text("baton byte-level BPE 1");
  writer.Number(spec.nfc);
  writer.Number(spec.add_prefix_space);
  writer.Number(spec.ignore_merges);
  writer.Number(spec.split_patterns.size());
  for (const std::string& pattern : spec.split_patterns) writer.Text(pattern);
  writer.Number(spec.tokens.size());
  for (const std::string& token : spec.tokens) writer.Text(token);
  writer.Number(spec.merges.size());
  for (const auto& [left, right] : spec.merges) {
    writer.Text(left);
    writer.Text(right);
  }
  writer.Number(spec.added.size());
  for (const AddedToken& token : spec.added) {
    writer.Number(static_cast<uint64_t>(token.id));
    writer.Text(token.content);
    writer.Number(token.special);
  }
  return writer.Digest();
}

}  // namespace baton
