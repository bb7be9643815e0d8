// Splits text into words by regular expressions, as Hugging Face's Split, Digits and ByteLevel
// pre-tokenizers do.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct pcre2_real_code_8;

namespace baton {

// Immutable, usable from any thread.
class PreTokenizer {
 public:
  // Each pattern splits the pieces the one before it left: matches and the text between matches
  // become pieces of their own ("Isolated"). Patterns mean what they mean in Hugging Face
  // `tokenizers`. Errors: InvalidArgument with PCRE2's message and the pattern.
  static absl::StatusOr<PreTokenizer> Create(const std::vector<std::string>& patterns);

  // Calls `word` for each piece in order; together they are the whole text. `text` is valid UTF-8.
  // Errors: ResourceExhausted when matching exceeds its limits; what `word` returned.
  absl::Status Split(std::string_view text,
                     const std::function<absl::Status(std::string_view)>& word) const;

 private:
  struct CodeFree {
    void operator()(pcre2_real_code_8* code) const;
  };
  using Code = std::unique_ptr<pcre2_real_code_8, CodeFree>;

  absl::Status SplitFrom(size_t step, std::string_view text,
                         const std::function<absl::Status(std::string_view)>& word) const;

  std::vector<Code> steps_;
};

}  // namespace baton
