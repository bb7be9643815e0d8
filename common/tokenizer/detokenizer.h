// Token ids -> text, one id at a time, whole characters only.
//
//   Detokenizer detokenizer(tokenizer);
//   for (int32_t id : ids) send(detokenizer.Push(id));
//   send(detokenizer.Flush());
//
// The concatenation equals Tokenizer::Decode of all ids. At most 3 bytes are held back; bytes that
// can no longer become a character are replaced by U+FFFD at once. Work per token is bounded by the
// token's own bytes. One stream per object; not thread-safe.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/utf8.h"

namespace baton {

class Detokenizer {
 public:
  // `tokenizer` must outlive this. `skip_special`: special tokens give no text. `continues_text` as
  // in DecodeOptions.
  explicit Detokenizer(const Tokenizer& tokenizer, bool skip_special = true,
                       bool continues_text = false)
      : tokenizer_(tokenizer),
        skip_special_(skip_special),
        continues_text_(continues_text),
        strip_left_(continues_text ? 0 : tokenizer.leading_spaces()) {}

  // The text that became complete with this token; often empty inside a multi-byte character.
  // An id outside the vocabulary gives no text.
  std::string Push(int32_t id);

  // Ends the text: what is held back becomes U+FFFD. The object can then start another.
  std::string Flush();

 private:
  // Takes off the spaces at the start that aren't part of the text.
  std::string WithoutLeadingSpaces(std::string text);

  const Tokenizer& tokenizer_;
  const bool skip_special_;
  const bool continues_text_;
  int strip_left_;  // spaces that may still go
  Utf8Repairer repairer_;
};

}  // namespace baton
