// Questions answered over a prefix that came by each way: what the consumer says (greedily), and
// how likely it finds the answer it should give.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/scd/calibrate/held_out.h"
#include "common/scd/calibrate/model_probe.h"
#include "common/scd/calibrate/prefix_way.h"
#include "common/scd/evaluate/questions.h"
#include "common/tokenizer/tokenizer.h"
#include "kernels/executor.h"

namespace baton {

// One question by one way.
struct Answer {
  std::string text;
  bool exact = false;
  double f1 = 0;
  // Over the tokens of the answer it should give; KL to the consumer's own prefill.
  PredictionSums sums;
};

struct AnsweredQuestion {
  std::string skill;
  std::int64_t tokens = 0;      // of the answer it should give
  std::vector<Answer> answers;  // the consumer's own prefill (oracle), then each way
};

struct AnswerOptions {
  std::int32_t max_answer = 64;  // tokens
  CalibrationProgress progress;  // in questions; may be null
};

// The first `most` questions of the set; 0: all. Errors: RESOURCE_EXHAUSTED when the pages cannot
// be had.
absl::StatusOr<std::vector<AnsweredQuestion>> AnswerQuestions(
    const ProbedModel& producer, const ProbedModel& consumer, const QuestionSet& set,
    std::int64_t most, absl::Span<const PrefixWay> ways, const AnswerForm& form,
    const Tokenizer& tokenizer, const AnswerOptions& options, Executor& executor);

}  // namespace baton
