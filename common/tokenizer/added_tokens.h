// Finds added tokens in text, with the rules of Hugging Face's AddedVocabulary.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"
#include "common/tokenizer/tokenizer_spec.h"

namespace baton {

// Immutable once every token is added; usable from any thread. Work is the length of the text times
// the longest token at worst.
class AddedTokens {
 public:
  // `text`: what to look for, the token's content or its normalised form. Empty text is never
  // found.
  void Add(const AddedToken& token, std::string_view text);

  bool empty() const { return tokens_.empty(); }

  // A part of the text: added token `id` or, with id < 0, text between two of them.
  struct Part {
    int32_t id;
    size_t begin;
    size_t end;
  };

  // Where in the text tokens may be found, and which: special ones if `parse_special`, none at all
  // if `literal`.
  struct Range {
    size_t begin;
    size_t end;
    bool parse_special;
    bool literal = false;
  };

  // The longest token at the leftmost place wins; a special one that may not be parsed is text and
  // hides others inside it. Tokens lie within one range; the ranges cover `text` in order.
  std::vector<Part> Find(std::string_view text, absl::Span<const Range> ranges) const;

 private:
  struct Node {
    int32_t token = -1;  // index into tokens_
  };
  struct Match {
    int32_t token = -1;
    size_t size = 0;
  };

  static uint64_t Key(int32_t node, char c) {
    return static_cast<uint64_t>(node) << 8 | static_cast<uint8_t>(c);
  }
  Match LongestAt(std::string_view text) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_{1};
  absl::flat_hash_map<uint64_t, int32_t> children_;
  std::array<bool, 256> starts_{};
};

}  // namespace baton
