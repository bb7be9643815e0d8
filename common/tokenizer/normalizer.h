// Changes text before it is split: Unicode normal forms, replacements, SentencePiece's spaces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/pattern.h"
#include "common/tokenizer/tokenizer_spec.h"

namespace baton {

// Immutable, usable from any thread.
class Normalizer {
 public:
  // Errors: InvalidArgument with PCRE2's message and the pattern.
  static absl::StatusOr<Normalizer> Create(const std::vector<NormalizerStep>& steps);

  bool empty() const { return steps_.empty(); }

  // `text` is valid UTF-8, so is the result. `at_start`: it begins the whole text. Errors:
  // ResourceExhausted when a pattern exceeds its limits or the result kMaxNormalizedBytes.
  absl::StatusOr<std::string> Apply(std::string_view text, bool at_start) const;

  static constexpr size_t kMaxNormalizedBytes = size_t{256} << 20;

 private:
  struct Step {
    NormalizerStep spec;
    std::vector<Pattern> pattern;  // one for kReplace
  };

  std::vector<Step> steps_;
};

}  // namespace baton
