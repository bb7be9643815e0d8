// UTF-8 checks and repair (Unicode's "maximal subpart" rule: what Python, Rust and browsers do).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace baton {

// Offset of the first byte that is not part of valid UTF-8 (no surrogates, nothing overlong, at
// most U+10FFFF); nullopt when all of it is valid.
std::optional<size_t> FirstInvalidUtf8(std::string_view text);

// Length of the character that starts at text[0]; `text` is non-empty valid UTF-8.
size_t Utf8CharLength(std::string_view text);

// Where the last character begins; `text` is non-empty valid UTF-8.
size_t Utf8LastChar(std::string_view text);

// Decodes the character at text[0]; `text` is non-empty valid UTF-8.
char32_t Utf8Decode(std::string_view text);

void AppendUtf8(char32_t c, std::string* out);

// `text` without leading and trailing Unicode white space, as Python's str.strip().
std::string_view StripUnicodeSpace(std::string_view text);

// Turns a stream of bytes into valid UTF-8, replacing each maximal invalid part by U+FFFD. Holds
// back at most 3 bytes.
class Utf8Repairer {
 public:
  // Appends what became certain to `out`.
  void Push(std::string_view bytes, std::string* out);
  void Flush(std::string* out);

 private:
  void PushByte(uint8_t byte, std::string* out);

  char held_[4] = {};
  int held_size_ = 0;
  int needed_ = 0;           // bytes still missing of the character in held_
  uint8_t next_min_ = 0x80;  // allowed range of the next continuation byte
  uint8_t next_max_ = 0xBF;
};

}  // namespace baton
