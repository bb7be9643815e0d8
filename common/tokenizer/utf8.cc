#include "common/tokenizer/utf8.h"

#include <cstring>

namespace baton {
namespace {

// What a first byte says: how many continuation bytes follow and what the first of them may be.
struct Lead {
  int needed;  // -1: cannot start a character
  uint8_t min;
  uint8_t max;
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {0, 0x80, 0xBF};
  if (byte < 0xC2) return {-1, 0, 0};
  if (byte < 0xE0) return {1, 0x80, 0xBF};
  if (byte == 0xE0) return {2, 0xA0, 0xBF};
  if (byte == 0xED) return {2, 0x80, 0x9F};  // no surrogates
  if (byte < 0xF0) return {2, 0x80, 0xBF};
  if (byte == 0xF0) return {3, 0x90, 0xBF};
  if (byte < 0xF4) return {3, 0x80, 0xBF};
  if (byte == 0xF4) return {3, 0x80, 0x8F};  // at most U+10FFFF
  return {-1, 0, 0};
}

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

bool IsUnicodeSpace(char32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

}  // namespace

std::optional<size_t> FirstInvalidUtf8(std::string_view text) {
  size_t i = 0;
  while (i < text.size()) {
    uint64_t word;
    if (i + sizeof(word) <= text.size()) {
      std::memcpy(&word, text.data() + i, sizeof(word));
      if ((word & 0x8080808080808080ULL) == 0) {
        i += sizeof(word);
        continue;
      }
    }
    const Lead lead = LeadOf(static_cast<uint8_t>(text[i]));
    if (lead.needed < 0) return i;
    for (int k = 1; k <= lead.needed; ++k) {
      if (i + k >= text.size()) return i;
      const uint8_t byte = static_cast<uint8_t>(text[i + k]);
      if (byte < (k == 1 ? lead.min : 0x80) || byte > (k == 1 ? lead.max : 0xBF)) return i;
    }
    i += 1 + lead.needed;
  }
  return std::nullopt;
}

size_t Utf8CharLength(std::string_view text) {
  return 1 + static_cast<size_t>(LeadOf(static_cast<uint8_t>(text[0])).needed);
}

char32_t Utf8Decode(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<char32_t>(static_cast<uint8_t>(text[i])); };
  switch (Utf8CharLength(text)) {
    case 1:
      return byte(0);
    case 2:
      return (byte(0) & 0x1F) << 6 | (byte(1) & 0x3F);
    case 3:
      return (byte(0) & 0x0F) << 12 | (byte(1) & 0x3F) << 6 | (byte(2) & 0x3F);
    default:
      return (byte(0) & 0x07) << 18 | (byte(1) & 0x3F) << 12 | (byte(2) & 0x3F) << 6 |
             (byte(3) & 0x3F);
  }
}

void AppendUtf8(char32_t c, std::string* out) {
  const auto push = [&](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    push(c);
  } else if (c < 0x800) {
    push(0xC0 | c >> 6);
    push(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    push(0xE0 | c >> 12);
    push(0x80 | (c >> 6 & 0x3F));
    push(0x80 | (c & 0x3F));
  } else {
    push(0xF0 | c >> 18);
    push(0x80 | (c >> 12 & 0x3F));
    push(0x80 | (c >> 6 & 0x3F));
    push(0x80 | (c & 0x3F));
  }
}

size_t Utf8LastChar(std::string_view text) {
  size_t begin = text.size() - 1;
  while (begin > 0 && (static_cast<uint8_t>(text[begin]) & 0xC0) == 0x80) --begin;
  return begin;
}

std::string_view StripUnicodeSpace(std::string_view text) {
  while (!text.empty() && IsUnicodeSpace(Utf8Decode(text))) {
    text.remove_prefix(Utf8CharLength(text));
  }
  while (!text.empty()) {
    const size_t begin = Utf8LastChar(text);
    if (!IsUnicodeSpace(Utf8Decode(text.substr(begin)))) break;
    text = text.substr(0, begin);
  }
  return text;
}

void Utf8Repairer::Push(std::string_view bytes, std::string* out) {
  for (char byte : bytes) PushByte(static_cast<uint8_t>(byte), out);
}

void Utf8Repairer::PushByte(uint8_t byte, std::string* out) {
  if (needed_ > 0) {
    if (byte >= next_min_ && byte <= next_max_) {
      held_[held_size_++] = static_cast<char>(byte);
      next_min_ = 0x80;
      next_max_ = 0xBF;
      if (--needed_ == 0) {
        out->append(held_, static_cast<size_t>(held_size_));
        held_size_ = 0;
      }
      return;
    }
    Flush(out);  // the character was cut short; this byte starts anew
  }
  const Lead lead = LeadOf(byte);
  if (lead.needed < 0) {
    out->append(kReplacement);
  } else if (lead.needed == 0) {
    out->push_back(static_cast<char>(byte));
  } else {
    held_[0] = static_cast<char>(byte);
    held_size_ = 1;
    needed_ = lead.needed;
    next_min_ = lead.min;
    next_max_ = lead.max;
  }
}

void Utf8Repairer::Flush(std::string* out) {
  if (held_size_ > 0) out->append(kReplacement);
  held_size_ = 0;
  needed_ = 0;
}

}  // namespace baton
