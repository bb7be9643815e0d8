// The echoed prompt of one choice: its text, and where in it each scored token stands.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "common/tokenizer/utf8.h"

namespace baton {

// Where tokens that follow each other stand in their joined text, in characters. A token that
// begins inside a character stands at that character.
class TokenOffsets {
 public:
  explicit TokenOffsets(int64_t start = 0) : characters_(start) {}
  // Of the next token.
  int64_t Next(std::string_view bytes);

 private:
  int64_t characters_;  // begun so far
};

// Not thread-safe.
class PromptEcho {
 public:
  // `text`: the prompt as the client sent it; absent: a prompt of token ids, whose text is made of
  // the tokens' bytes as they come.
  explicit PromptEcho(std::optional<std::string> text);

  // What of the prompt's text is known and was not taken yet; whole characters.
  std::string TakeText();
  // The next token of the prompt has these bytes; returns where it stands. Tokens that a text
  // prompt does not show (BOS, the space some tokenizers put in front) have no width.
  int64_t Next(std::string_view bytes);
  // No token follows: a character left open becomes U+FFFD.
  void Finish();
  // Of the text known so far.
  int64_t characters() const { return characters_; }

 private:
  const bool from_tokens_;
  std::string text_;        // not taken yet
  int64_t characters_ = 0;  // taken or not
  Utf8Repairer repairer_;   // token prompts
  std::string rest_;        // of a text prompt, behind the tokens seen
  bool began_ = false;      // some token was found in the text
  TokenOffsets offsets_;
};

}  // namespace baton
