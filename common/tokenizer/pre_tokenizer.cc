#include "common/tokenizer/pre_tokenizer.h"

#include <optional>
#include <utility>

#include "absl/functional/function_ref.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace baton {
namespace {

using Behavior = SplitStep::Behavior;
using Prefix = SplitStep::Prefix;

// Joins the parts of a text (matches and what is between them, in order) to words.
class Joiner {
 public:
  // Called with the range of a word. What it refers to must outlive the Joiner.
  using EmitFn = absl::FunctionRef<absl::Status(size_t begin, size_t end)>;

  Joiner(Behavior behavior, EmitFn emit) : behavior_(behavior), emit_(emit) {}

  absl::Status Add(size_t begin, size_t end, bool match) {
    if (behavior_ == Behavior::kIsolated) return emit_(begin, end);
    if (behavior_ == Behavior::kRemoved) return match ? absl::OkStatus() : emit_(begin, end);
    bool join = pending_.has_value();
    if (behavior_ == Behavior::kMergedWithPrevious) {
      join = join && match && !last_match_;
    } else if (behavior_ == Behavior::kMergedWithNext) {
      join = join && !match && last_match_;
    } else {
      join = join && match == last_match_;
    }
    last_match_ = match;
    if (join) {
      pending_->end = end;
      return absl::OkStatus();
    }
    BATON_RETURN_IF_ERROR(Finish());
    pending_ = {begin, end};
    return absl::OkStatus();
  }

  absl::Status Finish() {
    if (!pending_.has_value()) return absl::OkStatus();
    const Pattern::Range range = *pending_;
    pending_.reset();
    return emit_(range.begin, range.end);
  }

 private:
  const Behavior behavior_;
  const EmitFn emit_;
  std::optional<Pattern::Range> pending_;
  bool last_match_ = false;
};

}  // namespace

absl::StatusOr<PreTokenizer> PreTokenizer::Create(const std::vector<SplitStep>& steps) {
  PreTokenizer result;
  for (const SplitStep& step : steps) {
    Step made{step, {}};
    if (step.kind == SplitStep::Kind::kSplit) {
      BATON_ASSIGN_OR_RETURN(Pattern pattern, Pattern::Create(step.pattern));
      made.pattern.push_back(std::move(pattern));
    }
    result.steps_.push_back(std::move(made));
  }
  return result;
}

absl::Status PreTokenizer::Split(std::string_view text, bool at_start, const WordFn& word) const {
  return SplitFrom(0, text, at_start, word);
}

absl::Status PreTokenizer::SplitFrom(size_t step, std::string_view text, bool at_start,
                                     const WordFn& word) const {
  if (text.empty()) return absl::OkStatus();
  if (step == steps_.size()) return word(text);
  const SplitStep& spec = steps_[step].spec;
  if (spec.kind == SplitStep::Kind::kSplit) return SplitAtMatches(step, text, at_start, word);
  if (spec.kind == SplitStep::Kind::kPrefixSpace) {
    if (text.starts_with(' ')) return SplitFrom(step + 1, text, at_start, word);
    return SplitFrom(step + 1, Cat(" ", text), at_start, word);
  }
  std::string marked;
  const bool wanted = spec.prefix == Prefix::kAlways || (spec.prefix == Prefix::kFirst && at_start);
  if (wanted && !text.starts_with(' ') && !text.starts_with(kSpaceMark)) marked = kSpaceMark;
  for (char c : text) {
    if (c == ' ') {
      marked += kSpaceMark;
    } else {
      marked.push_back(c);
    }
  }
  return SplitFrom(step + 1, marked, at_start, word);
}

absl::Status PreTokenizer::SplitAtMatches(size_t step, std::string_view text, bool at_start,
                                          const WordFn& word) const {
  const SplitStep& spec = steps_[step].spec;
  const auto emit = [&](size_t begin, size_t end) {
    return SplitFrom(step + 1, text.substr(begin, end - begin), at_start && begin == 0, word);
  };
  Joiner joiner(spec.behavior, emit);
  PatternMatches matches(steps_[step].pattern.front(), text);
  size_t done = 0;  // everything before is handed on
  for (;;) {
    BATON_ASSIGN_OR_RETURN(const auto match, matches.Next());
    if (!match.has_value()) break;
    if (match->begin > done) BATON_RETURN_IF_ERROR(joiner.Add(done, match->begin, spec.invert));
    BATON_RETURN_IF_ERROR(joiner.Add(match->begin, match->end, !spec.invert));
    done = match->end;
  }
  if (done < text.size()) BATON_RETURN_IF_ERROR(joiner.Add(done, text.size(), spec.invert));
  return joiner.Finish();
}

}  // namespace baton
