#include "common/base/utf8.h"

#include <cstdint>

namespace baton {

size_t Utf8SequenceLength(std::string_view text) {
  if (text.empty()) return 0;
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  size_t length = 0;
  uint32_t value = 0;
  if (first < 0x80) return 1;
  if (first >= 0xC2 && first < 0xE0) {
    length = 2;
    value = first & 0x1Fu;
  } else if (first >= 0xE0 && first < 0xF0) {
    length = 3;
    value = first & 0x0Fu;
  } else if (first >= 0xF0 && first < 0xF5) {
    length = 4;
    value = first & 0x07u;
  } else {
    return 0;
  }
  if (text.size() < length) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
    value = value << 6 | (byte(i) & 0x3Fu);
  }
  const bool overlong = (length == 3 && value < 0x800) || (length == 4 && value < 0x10000);
  const bool surrogate = value >= 0xD800 && value < 0xE000;
  return overlong || surrogate || value > 0x10FFFF ? 0 : length;
}

bool IsValidUtf8(std::string_view text) {
  while (!text.empty()) {
    const size_t length = Utf8SequenceLength(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

}  // namespace baton
