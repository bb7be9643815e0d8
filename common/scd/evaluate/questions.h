// Questions on texts, as tokens in the form that the model was trained on: a file of JSON objects,
// one a line, with
//
//   context      text that is handed over; lines with the same one, in a row, share its prefix
//   question     what follows it in the same turn, after a blank line
//   answer       what a perfect consumer says; its likelihood is measured. Or else the first of
//   references   (or "answers") all answers that count as right; or else `answer` alone
//   skill        what scores are grouped by; "all" when absent
//   exact        true: only the letters of a reference count as an exact match (JSON); else SQuAD's
//                normalisation
//
// scripts/consumers/questions.py writes such files; those of qa_train are such files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/tokenizer/chat_template.h"
#include "common/tokenizer/tokenizer.h"

namespace baton {

struct Question {
  std::string skill;
  std::string answer;
  std::vector<std::string> references;  // at least one
  bool exact = false;
  std::vector<std::int32_t> suffix;         // from the end of the group's prefix to the answer
  std::vector<std::int32_t> answer_tokens;  // with the token that ends it
};

// Questions that share a prefix.
struct QuestionGroup {
  std::vector<std::int32_t> prefix;
  std::vector<Question> questions;  // in the file's order
};

struct QuestionSet {
  std::string path;
  std::vector<QuestionGroup> groups;
  std::int64_t questions = 0;
  std::int64_t left_out = 0;  // longer than allowed, or on too short a context

  // 32 hex digits over tokens and references.
  std::string Digest() const;
};

// How a model is asked.
struct AnswerForm {
  // Nothing: the question follows the context after a blank line, and a line break ends it.
  std::optional<ChatTemplate> chat;
  // What ends an answer; the first is put at the end of reference answers. Without one, a line
  // break does.
  std::vector<std::int32_t> end;
};

// Prefix, suffix and answer have at most `max_tokens` together and the prefix at least
// `min_prefix`; other questions are left out and counted. Errors name file, line and field:
// INVALID_ARGUMENT (not .jsonl, not a JSON object, a field missing or of another type, no question
// fits), or as ReadTextFile and EncodeChat.
absl::StatusOr<QuestionSet> ReadQuestions(const std::string& path, const Tokenizer& tokenizer,
                                          const AnswerForm& form, std::int32_t min_prefix,
                                          std::int32_t max_tokens);

}  // namespace baton
