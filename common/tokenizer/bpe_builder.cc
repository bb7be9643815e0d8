#include "common/tokenizer/bpe_builder.h"

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_replace.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/utf8.h"

namespace baton {
namespace {

using Ids = absl::flat_hash_map<std::string, int32_t>;

std::vector<bool> SpecialIds(const TokenizerSpec& spec) {
  std::vector<bool> special(spec.tokens.size(), false);
  for (const AddedToken& token : spec.added) {
    special[static_cast<size_t>(token.id)] = token.special;
  }
  return special;
}

// Symbols before merging.
void SetSymbols(const TokenizerSpec& spec, const Ids& ids, BpeVocabulary* vocab) {
  vocab->byte_tokens.fill(-1);
  for (int b = 0; b < 256; ++b) {
    const auto byte = static_cast<uint8_t>(b);
    if (!spec.byte_level && !spec.byte_fallback) continue;
    const auto it = ids.find(spec.byte_level ? ByteLevelSpelling(byte) : ByteTokenText(byte));
    if (it != ids.end()) vocab->byte_tokens[byte] = it->second;
  }
  if (spec.byte_level) return;
  const std::vector<bool> special = SpecialIds(spec);
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    const std::string& token = spec.tokens[id];
    // Ordinary text must never become a special id.
    if (token.empty() || special[id] || Utf8CharLength(token) != token.size()) continue;
    vocab->char_tokens.emplace(Utf8Decode(token), static_cast<int32_t>(id));
  }
}

absl::Status AddListedMerges(const TokenizerSpec& spec, const Ids& ids, BpeVocabulary* vocab) {
  vocab->merges.reserve(spec.merges.size());
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
    vocab->merges.push_back({found[0], found[1], found[2], static_cast<uint32_t>(i)});
  }
  return absl::OkStatus();
}

// Any two neighbours may merge whose text together is a token with a score; SentencePiece's rule.
void AddScoredMerges(const TokenizerSpec& spec, const Ids& ids, BpeVocabulary* vocab) {
  const std::vector<int32_t> ranks = ScoreRanks(spec);
  int32_t next_char = vocab->size;
  for (size_t id = 0; id < ranks.size(); ++id) {
    if (ranks[id] < 0) continue;
    for (std::string_view rest = spec.tokens[id]; !rest.empty();) {
      if (vocab->char_tokens.try_emplace(Utf8Decode(rest), next_char).second) ++next_char;
      rest.remove_prefix(Utf8CharLength(rest));
    }
  }
  const auto symbol = [&](std::string_view text) {
    if (Utf8CharLength(text) == text.size()) return vocab->char_tokens.at(Utf8Decode(text));
    const auto it = ids.find(AbslView(text));
    return it == ids.end() || ranks[static_cast<size_t>(it->second)] < 0 ? -1 : it->second;
  };
  for (size_t id = 0; id < ranks.size(); ++id) {
    if (ranks[id] < 0) continue;
    const std::string_view token = spec.tokens[id];
    for (size_t at = Utf8CharLength(token); at < token.size();
         at += Utf8CharLength(token.substr(at))) {
      const int32_t left = symbol(token.substr(0, at));
      const int32_t right = symbol(token.substr(at));
      if (left < 0 || right < 0) continue;
      vocab->merges.push_back(
          {left, right, static_cast<int32_t>(id), static_cast<uint32_t>(ranks[id])});
    }
  }
}

// Where two symbols meet in a merge: the last byte or character of one, the first of the other.
void AddJoint(const TokenizerSpec& spec, std::string_view left, std::string_view right,
              BpeVocabulary* vocab) {
  const size_t last = Utf8LastChar(left);
  if (!spec.byte_level) {
    vocab->joints.insert(BpeVocabulary::Pair(Utf8Decode(left.substr(last)), Utf8Decode(right)));
    return;
  }
  const auto left_byte = ByteLevelBytes(left.substr(last));
  const auto right_byte = ByteLevelBytes(right.substr(0, Utf8CharLength(right)));
  if (!left_byte || !right_byte) {
    vocab->may_cut = false;
    return;
  }
  vocab->joints.insert(BpeVocabulary::Pair(static_cast<uint8_t>((*left_byte)[0]),
                                           static_cast<uint8_t>((*right_byte)[0])));
}

void AddJoints(const TokenizerSpec& spec, BpeVocabulary* vocab) {
  const bool all_bytes = std::all_of(vocab->byte_tokens.begin(), vocab->byte_tokens.end(),
                                     [](int32_t id) { return id >= 0; });
  // Without a token for each byte a character may vanish, or become one unknown with the next.
  vocab->may_cut = spec.byte_level ? !spec.unk_id.has_value() || all_bytes : all_bytes;
  if (!spec.scores.empty()) {
    std::vector<std::string> chars(vocab->char_tokens.size());
    const auto text_of = [&](int32_t id) -> std::string_view {
      return id < vocab->size ? std::string_view(spec.tokens[static_cast<size_t>(id)])
                              : std::string_view(chars[static_cast<size_t>(id - vocab->size)]);
    };
    for (const auto& [c, id] : vocab->char_tokens) {
      if (id >= vocab->size) AppendUtf8(c, &chars[static_cast<size_t>(id - vocab->size)]);
    }
    for (const BpeVocabulary::Merge& merge : vocab->merges) {
      AddJoint(spec, text_of(merge.left), text_of(merge.right), vocab);
    }
    return;
  }
  for (const auto& [left, right] : spec.merges) {
    AddJoint(spec, left, right, vocab);
    // Bytes of characters without a token may merge as well; where those meet isn't known.
    if (spec.byte_fallback && (ByteOfToken(left) || ByteOfToken(right))) vocab->may_cut = false;
  }
  if (!spec.byte_level || all_bytes) return;
  // A byte that vanishes leaves its neighbours side by side.
  for (uint32_t missing = 0; missing < 256; ++missing) {
    if (vocab->byte_tokens[missing] >= 0) continue;
    for (uint32_t other = 0; other < 256; ++other) {
      vocab->joints.insert(BpeVocabulary::Pair(missing, other));
      vocab->joints.insert(BpeVocabulary::Pair(other, missing));
    }
  }
}

}  // namespace

absl::StatusOr<BpeVocabulary> BuildBpeVocabulary(const TokenizerSpec& spec, const Ids& ids) {
  BpeVocabulary vocab;
  vocab.byte_level = spec.byte_level;
  vocab.unk = spec.unk_id.value_or(-1);
  vocab.fuse_unk = spec.fuse_unk;
  vocab.fall_back_last = !spec.scores.empty();
  vocab.size = static_cast<int32_t>(spec.tokens.size());
  SetSymbols(spec, ids, &vocab);
  if (spec.scores.empty()) {
    BATON_RETURN_IF_ERROR(AddListedMerges(spec, ids, &vocab));
  } else {
    AddScoredMerges(spec, ids, &vocab);
  }
  AddJoints(spec, &vocab);
  if (!spec.ignore_merges) return vocab;
  std::vector<bool> added(spec.tokens.size(), false);
  for (const AddedToken& token : spec.added) added[static_cast<size_t>(token.id)] = true;
  for (size_t id = 0; id < spec.tokens.size(); ++id) {
    // Added tokens are left out: ordinary text must never become a special id.
    if (added[id] || spec.tokens[id].empty()) continue;
    std::string word = spec.byte_level ? BytesOfToken(spec, spec.tokens[id]) : spec.tokens[id];
    vocab.whole_words.try_emplace(std::move(word), static_cast<int32_t>(id));
  }
  return vocab;
}

std::string BytesOfToken(const TokenizerSpec& spec, const std::string& token) {
  if (spec.byte_level) {
    auto bytes = ByteLevelBytes(token);
    return bytes.has_value() ? *std::move(bytes) : token;
  }
  if (const auto byte = ByteOfToken(token); byte && spec.decoder.bytes) {
    return std::string(1, static_cast<char>(*byte));
  }
  return BytesOfAddedToken(spec, token);
}

std::string BytesOfAddedToken(const TokenizerSpec& spec, std::string text) {
  for (const auto& [from, to] : spec.decoder.replace) {
    absl::StrReplaceAll({{from, to}}, &text);
  }
  return text;
}

}  // namespace baton
