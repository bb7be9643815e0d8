#include "common/scd/evaluate/answers.h"

#include <algorithm>
#include <cstddef>
#include <string_view>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/scd/evaluate/answer_score.h"
#include "kernels/sampling.h"

namespace baton {
namespace {

std::int32_t LongestConversation(const QuestionSet& set) {
  std::size_t most = 0;
  for (const QuestionGroup& group : set.groups) {
    for (const Question& q : group.questions) {
      most = std::max(most, group.prefix.size() + q.suffix.size() + q.answer_tokens.size());
    }
  }
  return static_cast<std::int32_t>(most);
}

class Answerer {
 public:
  Answerer(std::unique_ptr<HandOver> handed, const AnswerForm& form, const Tokenizer& tokenizer,
           std::int32_t max_answer)
      : handed_(std::move(handed)),
        form_(form),
        tokenizer_(tokenizer),
        max_answer_(max_answer),
        vocab_(handed_->consumer().model->config().vocab) {}

  void Take(absl::Span<const std::int32_t> prefix) {
    handed_->Take(prefix);
    prefix_ = static_cast<std::int32_t>(prefix.size());
  }

  // Of the last prefix; it stays.
  absl::StatusOr<AnsweredQuestion> Ask(const Question& question) {
    AnsweredQuestion answered{.skill = question.skill,
                              .tokens = static_cast<std::int64_t>(question.answer_tokens.size()),
                              .answers = {}};
    answered.answers.resize(handed_->caches());
    std::vector<std::int32_t> said = Likelihood(question, answered);
    const auto asked = prefix_ + static_cast<std::int32_t>(question.suffix.size());
    BATON_RETURN_IF_ERROR(Generate(asked, std::move(said), question, answered));
    for (std::size_t i = 0; i < handed_->caches(); ++i) handed_->Rewind(i, prefix_);
    return answered;
  }

 private:
  // Runs question and answer, scores the latter; each cache's likeliest first token. The question
  // stays in the caches.
  std::vector<std::int32_t> Likelihood(const Question& question, AnsweredQuestion& answered) {
    std::vector<std::int32_t> tokens = question.suffix;
    tokens.insert(tokens.end(), question.answer_tokens.begin(), question.answer_tokens.end() - 1);
    const auto first = static_cast<std::int32_t>(question.suffix.size()) - 1;
    const auto rows = static_cast<std::int64_t>(question.answer_tokens.size());
    const std::int64_t d = handed_->consumer().model->config().hidden;
    std::vector<std::vector<float>> hidden;  // of what predicts the answer
    for (std::size_t i = 0; i < handed_->caches(); ++i) {
      const float* h = handed_->Run(i, tokens, prefix_) + first * d;
      hidden.emplace_back(h, h + rows * d);
      handed_->Rewind(i, prefix_ + first + 1);
    }
    std::vector<PredictionSums> sums(hidden.size());
    PredictionScorer(handed_->pass(), vocab_, handed_->executor())
        .Add(hidden, 0, static_cast<std::int32_t>(rows), question.answer_tokens.data(),
             absl::MakeSpan(sums));
    std::vector<std::int32_t> likeliest;
    const std::int32_t row = 0;
    for (std::size_t i = 0; i < hidden.size(); ++i) {
      answered.answers[i].sums = sums[i];
      const float* logits = handed_->pass().Logits(hidden[i].data(), {&row, 1});
      likeliest.push_back(static_cast<std::int32_t>(ArgMax(logits, vocab_)));
    }
    return likeliest;
  }

  bool Ends(std::int32_t token) const {
    if (!form_.end.empty()) {
      return std::find(form_.end.begin(), form_.end.end(), token) != form_.end.end();
    }
    return tokenizer_.TokenBytes(token).find('\n') != std::string_view::npos;
  }

  // All caches in step, so that weights are read once for all of them.
  absl::Status Generate(std::int32_t position, std::vector<std::int32_t> next,
                        const Question& question, AnsweredQuestion& answered) {
    std::vector<std::vector<std::int32_t>> said(next.size());
    for (std::int32_t length = 0; length < max_answer_; ++length) {
      std::vector<std::size_t> open;
      std::vector<std::int32_t> tokens;
      for (std::size_t i = 0; i < next.size(); ++i) {
        if (next[i] < 0 || Ends(next[i])) {
          next[i] = -1;
          continue;
        }
        said[i].push_back(next[i]);
        open.push_back(i);
        tokens.push_back(next[i]);
      }
      if (open.empty() || length + 1 == max_answer_) break;
      const std::vector<std::int32_t> positions(open.size(), position + length);
      const float* h = handed_->Step(open, tokens, positions);
      std::vector<std::int32_t> rows(open.size());
      for (std::size_t i = 0; i < rows.size(); ++i) rows[i] = static_cast<std::int32_t>(i);
      const float* logits = handed_->pass().Logits(h, rows);
      for (std::size_t i = 0; i < open.size(); ++i) {
        const float* row = logits + static_cast<std::int64_t>(i) * vocab_;
        next[open[i]] = static_cast<std::int32_t>(ArgMax(row, vocab_));
      }
    }
    for (std::size_t i = 0; i < said.size(); ++i) {
      BATON_ASSIGN_OR_RETURN(const std::string text,
                             tokenizer_.Decode(said[i], {.skip_special = true}));
      Answer& answer = answered.answers[i];
      answer.text = std::string(StripSpace(text));
      const auto& right = question.references;
      answer.exact = question.exact
                         ? std::find(right.begin(), right.end(), answer.text) != right.end()
                         : ExactMatch(answer.text, right);
      answer.f1 = AnswerF1(answer.text, right);
    }
    return absl::OkStatus();
  }

  const std::unique_ptr<HandOver> handed_;
  const AnswerForm& form_;
  const Tokenizer& tokenizer_;
  const std::int32_t max_answer_;
  const std::int64_t vocab_;
  std::int32_t prefix_ = 0;
};

}  // namespace

absl::StatusOr<std::vector<AnsweredQuestion>> AnswerQuestions(
    const ProbedModel& producer, const ProbedModel& consumer, const QuestionSet& set,
    std::int64_t most, absl::Span<const PrefixWay> ways, const AnswerForm& form,
    const Tokenizer& tokenizer, const AnswerOptions& options, Executor& executor) {
  const std::int64_t total = most > 0 ? std::min(most, set.questions) : set.questions;
  BATON_ASSIGN_OR_RETURN(auto handed,
                         HandOver::Create(producer, consumer, ways,
                                          LongestConversation(set) + options.max_answer, executor));
  Answerer answerer(std::move(handed), form, tokenizer, options.max_answer);
  std::vector<AnsweredQuestion> answered;
  for (const QuestionGroup& group : set.groups) {
    if (static_cast<std::int64_t>(answered.size()) == total) break;
    answerer.Take(group.prefix);
    for (const Question& question : group.questions) {
      if (static_cast<std::int64_t>(answered.size()) == total) break;
      BATON_ASSIGN_OR_RETURN(AnsweredQuestion one, answerer.Ask(question));
      answered.push_back(std::move(one));
      if (options.progress) {
        options.progress("answering questions", static_cast<std::int64_t>(answered.size()), total);
      }
    }
  }
  return answered;
}

}  // namespace baton
