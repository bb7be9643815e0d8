#include "common/tokenizer/normalizer.h"

#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "unicode/bytestream.h"
#include "unicode/normalizer2.h"
#include "unicode/stringpiece.h"

namespace baton {
namespace {

using Kind = NormalizerStep::Kind;

const icu::Normalizer2* IcuForm(Kind kind, UErrorCode* error) {
  switch (kind) {
    case Kind::kNfc:
      return icu::Normalizer2::getNFCInstance(*error);
    case Kind::kNfd:
      return icu::Normalizer2::getNFDInstance(*error);
    case Kind::kNfkc:
      return icu::Normalizer2::getNFKCInstance(*error);
    default:
      return icu::Normalizer2::getNFKDInstance(*error);
  }
}

absl::StatusOr<std::string> ToNormalForm(Kind kind, std::string_view text) {
  UErrorCode error = U_ZERO_ERROR;
  const icu::Normalizer2* form = IcuForm(kind, &error);
  if (U_FAILURE(error)) return absl::InternalError("ICU has no normalisation data");
  std::string out;
  icu::StringByteSink<std::string> sink(&out);
  form->normalizeUTF8(0, icu::StringPiece(text.data(), static_cast<int32_t>(text.size())), sink,
                      nullptr, error);
  if (U_FAILURE(error)) {
    return absl::InternalError(Cat("Unicode normalisation: ", u_errorName(error)));
  }
  return out;
}

absl::StatusOr<std::string> ReplaceMatches(const Pattern& pattern, std::string_view content,
                                           std::string_view text) {
  std::string out;
  PatternMatches matches(pattern, text);
  size_t done = 0;
  for (;;) {
    BATON_ASSIGN_OR_RETURN(const auto match, matches.Next());
    if (!match.has_value()) break;
    out.append(text, done, match->begin - done);
    out += content;
    done = match->end;
    if (out.size() > Normalizer::kMaxNormalizedBytes) break;
  }
  out.append(text, done);
  return out;
}

std::string SentencePieceSpaces(const NormalizerStep& step, std::string_view text, bool at_start) {
  if (step.collapse_spaces) {
    while (text.starts_with(' ')) text.remove_prefix(1);
    while (text.ends_with(' ')) text.remove_suffix(1);
  }
  std::string out;
  if (text.empty()) return out;
  if (step.dummy_prefix && (at_start || !text.starts_with(' '))) out = kSpaceMark;
  char before = '\0';
  for (char c : text) {
    if (c != ' ') {
      out.push_back(c);
    } else if (!(step.collapse_spaces && before == ' ')) {
      out += kSpaceMark;
    }
    before = c;
  }
  while (step.collapse_spaces && out.ends_with(kSpaceMark)) {
    out.resize(out.size() - kSpaceMark.size());  // marks that were in the text
  }
  return out;
}

}  // namespace

absl::StatusOr<Normalizer> Normalizer::Create(const std::vector<NormalizerStep>& steps) {
  Normalizer result;
  for (const NormalizerStep& step : steps) {
    Step made{step, {}};
    if (step.kind == Kind::kReplace) {
      BATON_ASSIGN_OR_RETURN(Pattern pattern, Pattern::Create(step.pattern));
      made.pattern.push_back(std::move(pattern));
    }
    result.steps_.push_back(std::move(made));
  }
  return result;
}

absl::StatusOr<std::string> Normalizer::Apply(std::string_view text, bool at_start) const {
  std::string out(text);
  for (const Step& step : steps_) {
    if (out.empty()) break;
    switch (step.spec.kind) {
      case Kind::kPrepend:
        out.insert(0, step.spec.content);
        break;
      case Kind::kReplace: {
        BATON_ASSIGN_OR_RETURN(out, ReplaceMatches(step.pattern[0], step.spec.content, out));
        break;
      }
      case Kind::kSentencePiece:
        out = SentencePieceSpaces(step.spec, out, at_start);
        break;
      default: {
        BATON_ASSIGN_OR_RETURN(out, ToNormalForm(step.spec.kind, out));
      }
    }
    if (out.size() > kMaxNormalizedBytes) {
      return absl::ResourceExhaustedError(
          Cat("the normalised text is longer than ", kMaxNormalizedBytes, " bytes"));
    }
  }
  return out;
}

}  // namespace baton
