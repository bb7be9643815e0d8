#include "common/tokenizer/added_tokens.h"

#include "common/tokenizer/utf8.h"
#include "unicode/uchar.h"

namespace baton {
namespace {

// \w and \s of Rust's regular expressions.
bool IsWordChar(char32_t c) {
  const auto u = static_cast<UChar32>(c);
  const uint32_t mask = U_GET_GC_MASK(u);
  return u_hasBinaryProperty(u, UCHAR_ALPHABETIC) || u_hasBinaryProperty(u, UCHAR_JOIN_CONTROL) ||
         (mask & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}

bool IsSpace(char32_t c) { return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_WHITE_SPACE); }

bool StandsAlone(std::string_view text, size_t begin, size_t end) {
  if (begin > 0) {
    const std::string_view before = text.substr(0, begin);
    if (IsWordChar(Utf8Decode(before.substr(Utf8LastChar(before))))) return false;
  }
  return end == text.size() || !IsWordChar(Utf8Decode(text.substr(end)));
}

}  // namespace

void AddedTokens::Add(const AddedToken& token, std::string_view text) {
  if (text.empty()) return;
  int32_t at = 0;
  for (char c : text) {
    const auto next = static_cast<int32_t>(nodes_.size());
    const auto [it, added] = children_.try_emplace(Key(at, c), next);
    if (added) nodes_.emplace_back();
    at = it->second;
  }
  // Of two tokens with one text the first counts.
  if (nodes_[static_cast<size_t>(at)].token >= 0) return;
  nodes_[static_cast<size_t>(at)].token = static_cast<int32_t>(tokens_.size());
  starts_[static_cast<uint8_t>(text[0])] = true;
  tokens_.push_back(token);
}

AddedTokens::Match AddedTokens::LongestAt(std::string_view text) const {
  Match best;
  if (!starts_[static_cast<uint8_t>(text[0])]) return best;
  int32_t at = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto it = children_.find(Key(at, text[i]));
    if (it == children_.end()) break;
    at = it->second;
    const Node& node = nodes_[static_cast<size_t>(at)];
    if (node.token >= 0) best = {node.token, i + 1};
  }
  return best;
}

std::vector<AddedTokens::Part> AddedTokens::Find(std::string_view text,
                                                 absl::Span<const Range> ranges) const {
  std::vector<Part> parts;
  size_t done = 0;  // everything before belongs to a part
  for (const Range& range : ranges) {
    if (tokens_.empty()) break;
    for (size_t i = range.begin; i < range.end;) {
      const Match match = LongestAt(text.substr(i, range.end - i));
      if (match.token < 0) {
        ++i;
        continue;
      }
      const AddedToken& token = tokens_[static_cast<size_t>(match.token)];
      size_t begin = i;
      size_t end = i + match.size;
      i = end;
      if (range.literal || (token.special && !range.parse_special)) continue;
      if (token.single_word && !StandsAlone(text, begin, end)) continue;
      if (token.lstrip) {
        while (begin > done) {
          const size_t last = Utf8LastChar(text.substr(0, begin));
          if (last < done || !IsSpace(Utf8Decode(text.substr(last)))) break;
          begin = last;
        }
      }
      if (token.rstrip) {
        while (end < text.size() && IsSpace(Utf8Decode(text.substr(end)))) {
          end += Utf8CharLength(text.substr(end));
        }
      }
      if (done < begin) parts.push_back({-1, done, begin});
      parts.push_back({token.id, begin, end});
      done = end;
    }
  }
  if (done < text.size()) parts.push_back({-1, done, text.size()});
  return parts;
}

}  // namespace baton
