#include "common/scd/evaluate/answer_score.h"

#include <unicode/locid.h>
#include <unicode/uchar.h>
#include <unicode/unistr.h>
#include <unicode/utf8.h>

#include <algorithm>
#include <cstdint>
#include <map>

namespace baton {
namespace {

// As Python's str.isspace().
bool IsSpace(UChar32 c) { return (c >= 0x1c && c <= 0x1f) || u_isUWhiteSpace(c); }

// As \w of Python's re.
bool IsWordCharacter(UChar32 c) {
  const int8_t type = u_charType(c);
  return c == '_' || u_isalpha(c) || type == U_DECIMAL_DIGIT_NUMBER || type == U_LETTER_NUMBER ||
         type == U_OTHER_NUMBER;
}

bool IsAsciiPunctuation(UChar32 c) {
  return (c >= '!' && c <= '/') || (c >= ':' && c <= '@') || (c >= '[' && c <= '`') ||
         (c >= '{' && c <= '~');
}

// Articles that stand as words of their own become spaces.
icu::UnicodeString WithoutArticles(const icu::UnicodeString& text) {
  icu::UnicodeString out, word;
  const auto flush = [&] {
    out += word == "a" || word == "an" || word == "the" ? icu::UnicodeString(" ") : word;
    word.remove();
  };
  for (int32_t i = 0; i < text.length(); i = text.moveIndex32(i, 1)) {
    const UChar32 c = text.char32At(i);
    if (IsWordCharacter(c)) {
      word.append(c);
    } else {
      flush();
      out.append(c);
    }
  }
  flush();
  return out;
}

std::vector<std::string> NormalisedWords(std::string_view text) {
  icu::UnicodeString lower =
      icu::UnicodeString::fromUTF8(icu::StringPiece(text.data(), static_cast<int32_t>(text.size())))
          .toLower(icu::Locale::getRoot());
  icu::UnicodeString bare;
  for (int32_t i = 0; i < lower.length(); i = lower.moveIndex32(i, 1)) {
    if (const UChar32 c = lower.char32At(i); !IsAsciiPunctuation(c)) bare.append(c);
  }
  const icu::UnicodeString kept = WithoutArticles(bare);
  std::vector<std::string> words;
  icu::UnicodeString word;
  const auto flush = [&] {
    if (!word.isEmpty()) word.toUTF8String(words.emplace_back());
    word.remove();
  };
  for (int32_t i = 0; i < kept.length(); i = kept.moveIndex32(i, 1)) {
    const UChar32 c = kept.char32At(i);
    if (IsSpace(c)) {
      flush();
    } else {
      word.append(c);
    }
  }
  flush();
  return words;
}

double F1Of(const std::vector<std::string>& got, const std::vector<std::string>& want) {
  if (got.empty() || want.empty()) return got == want ? 1 : 0;
  std::map<std::string, std::int64_t> left;
  for (const std::string& word : want) ++left[word];
  double same = 0;
  for (const std::string& word : got) {
    if (left[word]-- > 0) ++same;
  }
  return 2 * same / static_cast<double>(got.size() + want.size());
}

}  // namespace

std::string NormaliseAnswer(std::string_view text) {
  std::string joined;
  for (const std::string& word : NormalisedWords(text)) {
    if (!joined.empty()) joined += ' ';
    joined += word;
  }
  return joined;
}

bool ExactMatch(std::string_view answer, const std::vector<std::string>& references) {
  const std::string got = NormaliseAnswer(answer);
  return std::any_of(references.begin(), references.end(),
                     [&](const std::string& r) { return NormaliseAnswer(r) == got; });
}

double AnswerF1(std::string_view answer, const std::vector<std::string>& references) {
  const std::vector<std::string> got = NormalisedWords(answer);
  double best = 0;
  for (const std::string& r : references) best = std::max(best, F1Of(got, NormalisedWords(r)));
  return best;
}

std::string_view StripSpace(std::string_view text) {
  const auto size = static_cast<int32_t>(text.size());
  int32_t begin = 0, end = size;
  UChar32 c = 0;
  for (int32_t i = 0; i < size; begin = i) {
    U8_NEXT(text.data(), i, size, c);
    if (!IsSpace(c)) break;
  }
  if (begin == size) return {};
  for (int32_t i = size; i > begin; end = i) {
    U8_PREV(text.data(), begin, i, c);
    if (!IsSpace(c)) break;
  }
  return text.substr(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin));
}

}  // namespace baton
