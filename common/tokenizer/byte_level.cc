#include "common/tokenizer/byte_level.h"

#include <array>

#include "common/tokenizer/utf8.h"

namespace baton {
namespace {

constexpr int kAlphabetEnd = 0x144;  // characters are below this code point

struct Alphabet {
  std::array<std::string, 256> spelling;
  std::array<int16_t, kAlphabetEnd> byte_of;

  Alphabet() {
    byte_of.fill(-1);
    char32_t next = 0x100;
    for (int b = 0; b < 256; ++b) {
      const bool printable =
          (b >= 0x21 && b <= 0x7E) || (b >= 0xA1 && b <= 0xAC) || (b >= 0xAE && b <= 0xFF);
      const char32_t c = printable ? static_cast<char32_t>(b) : next++;
      AppendUtf8(c, &spelling[static_cast<size_t>(b)]);
      byte_of[c] = static_cast<int16_t>(b);
    }
  }
};

const Alphabet& TheAlphabet() {
  static const Alphabet alphabet;
  return alphabet;
}

}  // namespace

const std::string& ByteLevelSpelling(uint8_t byte) { return TheAlphabet().spelling[byte]; }

std::optional<std::string> ByteLevelBytes(std::string_view token) {
  const Alphabet& alphabet = TheAlphabet();
  std::string bytes;
  while (!token.empty()) {
    const char32_t c = Utf8Decode(token);
    if (c >= kAlphabetEnd || alphabet.byte_of[c] < 0) return std::nullopt;
    bytes.push_back(static_cast<char>(alphabet.byte_of[c]));
    token.remove_prefix(Utf8CharLength(token));
  }
  return bytes;
}

}  // namespace baton
