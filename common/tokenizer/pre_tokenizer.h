// Splits text into words, as Hugging Face's Split, Digits, Punctuation, Metaspace and ByteLevel
// pre-tokenizers do.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/pattern.h"
#include "common/tokenizer/tokenizer_spec.h"

namespace baton {

// Immutable, usable from any thread.
class PreTokenizer {
 public:
  using WordFn = std::function<absl::Status(std::string_view)>;

  // Each step works on the words that the one before it left. Errors: InvalidArgument with PCRE2's
  // message and the pattern.
  static absl::StatusOr<PreTokenizer> Create(const std::vector<SplitStep>& steps);

  // Calls `word` for each word in order; views are valid during the call. `text` is valid UTF-8,
  // `at_start` says whether it begins the whole text. Errors: ResourceExhausted when matching
  // exceeds its limits; what `word` returned.
  absl::Status Split(std::string_view text, bool at_start, const WordFn& word) const;

 private:
  struct Step {
    SplitStep spec;
    std::vector<Pattern> pattern;  // one for kSplit
  };

  absl::Status SplitFrom(size_t step, std::string_view text, bool at_start,
                         const WordFn& word) const;
  absl::Status SplitAtMatches(size_t step, std::string_view text, bool at_start,
                              const WordFn& word) const;

  std::vector<Step> steps_;
};

}  // namespace baton
