// A regular expression that means what it means in Hugging Face `tokenizers`.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

struct pcre2_real_code_8;

namespace baton {

// Immutable, usable from any thread.
class Pattern {
 public:
  struct Range {
    size_t begin;
    size_t end;
  };

  // Errors: InvalidArgument with PCRE2's message and the pattern.
  static absl::StatusOr<Pattern> Create(std::string_view pattern);

  // The first match that begins at `start` or later; nullopt when there is none. `text` is valid
  // UTF-8. Errors: ResourceExhausted when matching exceeds its limits.
  absl::StatusOr<std::optional<Range>> Find(std::string_view text, size_t start) const;

  // A pattern that matches `text` itself.
  static std::string Literal(std::string_view text);

 private:
  struct CodeFree {
    void operator()(pcre2_real_code_8* code) const;
  };
  std::unique_ptr<pcre2_real_code_8, CodeFree> code_;
};

// Goes over the matches in `text` in order, with the rules of Oniguruma's iterator: an empty match
// counts, unless it follows the match before it at once.
class PatternMatches {
 public:
  // Both must outlive this.
  PatternMatches(const Pattern& pattern, std::string_view text) : pattern_(pattern), text_(text) {}
  absl::StatusOr<std::optional<Pattern::Range>> Next();

 private:
  const Pattern& pattern_;
  const std::string_view text_;
  size_t start_ = 0;
  std::optional<size_t> last_end_;
};

}  // namespace baton
