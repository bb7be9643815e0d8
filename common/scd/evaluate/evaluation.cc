#include "common/scd/evaluate/evaluation.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <random>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace baton {
namespace {

absl::Status CheckEvaluationOptions(const EvaluationOptions& o, const ModelConfig& p,
                                    const ModelConfig& c) {
  const std::int64_t context = std::min(p.max_context, c.max_context);
  if (o.prefix < 2 * kSinkTokens || o.continuation < 2 || o.prefix + o.continuation > context) {
    return absl::InvalidArgumentError(Cat("prefix: ", o.prefix, ", continuation: ", o.continuation,
                                          "; the models' context is ", context));
  }
  if (o.documents < 0 || o.questions < 0 || o.selective_documents < 0 || o.max_answer < 1 ||
      o.resamples < 1) {
    return absl::InvalidArgumentError(Cat("documents: ", o.documents, ", questions: ", o.questions,
                                          ", max_answer: ", o.max_answer,
                                          ", resamples: ", o.resamples));
  }
  for (const double cut : o.cuts) {
    if (!(cut > 0 && cut <= 1)) {
      return absl::InvalidArgumentError(Cat("cuts: ", cut, "; above 0, at most 1"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckQuestionTokens(const QuestionSet& set, std::int64_t vocab) {
  for (const QuestionGroup& group : set.groups) {
    std::vector<const std::vector<std::int32_t>*> parts = {&group.prefix};
    for (const Question& q : group.questions) {
      parts.push_back(&q.suffix);
      parts.push_back(&q.answer_tokens);
    }
    for (const auto* ids : parts) {
      for (const std::int32_t id : *ids) {
        if (id < 0 || id >= vocab) {
          return absl::InvalidArgumentError(
              Cat(set.path, ": token ", id, "; the smaller vocabulary has ", vocab));
        }
      }
    }
  }
  return absl::OkStatus();
}

// Scores by document beside the state errors.
class DocumentWatch final : public StateErrorWatch {
 public:
  using StateErrorWatch::StateErrorWatch;

  void OnDocument(const Document& document, const DocumentCut& cut,
                  absl::Span<const PredictionSums> sums) override {
    scores.push_back({.file = document.file,
                      .prefix = cut.prefix,
                      .predictions = cut.predictions(),
                      .sums = {sums.begin(), sums.end()}});
  }

  std::vector<DocumentScore> scores;
};

class Tables {
 public:
  Tables(const EvaluationOptions& options, std::size_t ways) : options_(options), ways_(ways) {}

  DocumentTable OfDocuments(std::string name,
                            const std::vector<const DocumentScore*>& documents) const {
    DocumentTable table;
    table.name = std::move(name);
    table.documents = static_cast<std::int64_t>(documents.size());
    std::vector<const DocumentScore*> full;
    for (const DocumentScore* d : documents) {
      table.predictions += d->predictions;
      if (d->prefix == options_.prefix && d->predictions == options_.continuation - 1) {
        full.push_back(d);
      }
    }
    table.full_length = static_cast<std::int64_t>(full.size());
    const auto& long_ones = full.empty() ? documents : full;
    const auto weights = Column(documents, [](const DocumentScore& d) { return d.predictions; });
    const auto oracle = Column(documents, [](const DocumentScore& d) { return d.sums[0].nll; });
    table.oracle_nll = Ratio(oracle, weights);
    table.oracle_perplexity = Perplexity(long_ones, 0);
    const auto raw = Column(documents, [](const DocumentScore& d) { return d.sums[1].kl; });
    for (std::size_t i = 1; i <= ways_; ++i) {
      const auto kl = Column(documents, [i](const DocumentScore& d) { return d.sums[i].kl; });
      const auto lost =
          Column(documents, [i](const DocumentScore& d) { return d.sums[i].nll - d.sums[0].nll; });
      const auto same = Column(documents, [i](const DocumentScore& d) { return d.sums[i].same; });
      table.rows.push_back(
          {.kl = Ratio(kl, weights),
           .kl_error = RatioError(kl, weights),
           .kl_to_raw = Ratio(kl, raw),
           .kl_to_raw_95 = RatioInterval(kl, raw, options_.resamples, options_.seed),
           .nll = table.oracle_nll + Ratio(lost, weights),
           .nll_error = RatioError(lost, weights),
           .perplexity = Perplexity(long_ones, i),
           .top1 = Ratio(same, weights)});
    }
    return table;
  }

  AnswerTable OfAnswers(std::string name, const std::vector<std::string>& names,
                        const std::vector<const AnsweredQuestion*>& questions) const {
    AnswerTable table;
    table.name = std::move(name);
    table.questions = static_cast<std::int64_t>(questions.size());
    const std::vector<double> ones(questions.size(), 1);
    const auto tokens = Column(questions, [](const AnsweredQuestion& q) { return q.tokens; });
    for (std::size_t i = 0; i < names.size(); ++i) {
      const auto of = [&questions, i](auto field) {
        return Column(questions,
                      [&field, i](const AnsweredQuestion& q) { return field(q.answers[i]); });
      };
      const auto change = Column(
          questions, [i](const AnsweredQuestion& q) { return q.answers[i].f1 - q.answers[0].f1; });
      table.rows.push_back(
          {.name = names[i],
           .exact = Ratio(of([](const Answer& a) { return a.exact; }), ones),
           .f1 = Ratio(of([](const Answer& a) { return a.f1; }), ones),
           .f1_change_95 = RatioInterval(change, ones, options_.resamples, options_.seed),
           .nll = Ratio(of([](const Answer& a) { return a.sums.nll; }), tokens),
           .kl = Ratio(of([](const Answer& a) { return a.sums.kl; }), tokens)});
    }
    return table;
  }

 private:
  template <typename T, typename F>
  static std::vector<double> Column(const std::vector<const T*>& entries, F field) {
    std::vector<double> out;
    out.reserve(entries.size());
    for (const T* entry : entries) out.push_back(static_cast<double>(field(*entry)));
    return out;
  }

  static double Ratio(const std::vector<double>& above, const std::vector<double>& below) {
    double a = 0, b = 0;
    for (const double x : above) a += x;
    for (const double x : below) b += x;
    return b != 0 ? a / b : 0;
  }

  static double Perplexity(const std::vector<const DocumentScore*>& documents, std::size_t cache) {
    const auto nll =
        Column(documents, [cache](const DocumentScore& d) { return d.sums[cache].nll; });
    return std::exp(
        Ratio(nll, Column(documents, [](const DocumentScore& d) { return d.predictions; })));
  }

  const EvaluationOptions& options_;
  const std::size_t ways_;
};

std::vector<const Document*> Picked(const DocumentSet& set, const EvaluationOptions& o) {
  return PickDocuments(set, o.documents, o.prefix + o.continuation, o.seed);
}

// Chosen on documents that are not scored.
absl::StatusOr<std::vector<LayerRun>> RunsToRecompute(const CalibrationPair& pair,
                                                      const DocumentSet& set,
                                                      const EvaluationOptions& options,
                                                      Executor& executor) {
  const std::vector<const Document*> scored = Picked(set, options);
  std::vector<const Document*> others;
  for (const Document& d : set.documents) {
    if (static_cast<std::int64_t>(others.size()) == options.selective_documents) break;
    if (std::find(scored.begin(), scored.end(), &d) == scored.end()) others.push_back(&d);
  }
  if (others.empty()) return std::vector<LayerRun>();
  return ChooseLayerRuns(pair.producer, pair.consumer, others,
                         {.prefix = options.prefix,
                          .continuation = options.continuation,
                          .progress = options.progress},
                         executor);
}

// Of documents and questions.
std::int32_t LongestPrefix(const EvaluationTexts& texts, const EvaluationOptions& options) {
  std::int32_t longest = options.prefix;
  if (!texts.questions) return longest;
  for (const QuestionGroup& group : texts.questions->groups) {
    longest = std::max(longest, static_cast<std::int32_t>(group.prefix.size()));
  }
  return longest;
}

class Evaluator {
 public:
  Evaluator(const CalibrationPair& pair, const EvaluationTexts& texts,
            const std::vector<EvaluatedWay>& ways, const Tokenizer& tokenizer,
            const EvaluationOptions& options, Executor& executor)
      : pair_(pair),
        texts_(texts),
        ways_(ways),
        tokenizer_(tokenizer),
        options_(options),
        executor_(executor) {}

  absl::Status ScoreDocuments(Evaluation& e) const {
    std::vector<PrefixWay> ways;
    for (const EvaluatedWay& w : ways_) ways.push_back(w.way);
    DocumentWatch watch(ways.size() + 1, pair_.consumer.model->config());
    const std::vector<const Document*> documents = Picked(texts_.documents, options_);
    const absl::StatusOr<HeldOutScores> scores =
        ScoreHeldOut(pair_.producer, pair_.consumer, documents, ways,
                     {.prefix = options_.prefix,
                      .continuation = options_.continuation,
                      .progress = options_.progress,
                      .watch = &watch},
                     executor_);
    BATON_RETURN_IF_ERROR(scores.status());
    e.documents = std::move(watch.scores);
    e.state_errors = watch.Finish();
    for (const EvaluatedWay& w : ways_) {
      double bytes = 0, rows = 0;
      for (const DocumentScore& d : e.documents) {
        bytes += w.bytes_per_token(d.prefix) * d.prefix;
        rows += d.prefix;
      }
      e.ways.push_back({w.way.name, w.family, bytes / rows, w.is_default, w.compute});
    }
    TabulateDocuments(e);
    return absl::OkStatus();
  }

  absl::Status Answer(Evaluation& e) const {
    if (!texts_.questions) return absl::OkStatus();
    std::vector<PrefixWay> ways;
    e.answer_ways = {"oracle"};
    for (const EvaluatedWay& w : ways_) {
      if (!w.is_default) continue;
      ways.push_back(w.way);
      e.answer_ways.push_back(w.way.name);
    }
    BATON_ASSIGN_OR_RETURN(
        e.answers,
        AnswerQuestions(pair_.producer, pair_.consumer, *texts_.questions, options_.questions, ways,
                        texts_.form, tokenizer_,
                        {.max_answer = options_.max_answer, .progress = options_.progress},
                        executor_));
    const Tables tables(options_, ways_.size());
    std::vector<const AnsweredQuestion*> all;
    std::map<std::string, std::vector<const AnsweredQuestion*>> by_skill;
    for (const AnsweredQuestion& a : e.answers) {
      all.push_back(&a);
      by_skill[a.skill].push_back(&a);
    }
    e.answer_tables.push_back(tables.OfAnswers("all", e.answer_ways, all));
    if (by_skill.size() < 2) return absl::OkStatus();
    for (const auto& [skill, questions] : by_skill) {
      e.answer_tables.push_back(tables.OfAnswers(skill, e.answer_ways, questions));
    }
    return absl::OkStatus();
  }

 private:
  void TabulateDocuments(Evaluation& e) const {
    const Tables tables(options_, ways_.size());
    std::vector<std::vector<const DocumentScore*>> by_file(e.files.size());
    std::vector<const DocumentScore*> all;
    for (const DocumentScore& d : e.documents) {
      all.push_back(&d);
      by_file[d.file].push_back(&d);
    }
    e.document_tables.push_back(tables.OfDocuments("all", all));
    if (by_file.size() < 2) return;
    for (std::size_t f = 0; f < by_file.size(); ++f) {
      if (by_file[f].empty()) continue;
      e.document_tables.push_back(tables.OfDocuments(e.files[f].path, by_file[f]));
    }
  }

  const CalibrationPair& pair_;
  const EvaluationTexts& texts_;
  const std::vector<EvaluatedWay>& ways_;
  const Tokenizer& tokenizer_;
  const EvaluationOptions& options_;
  Executor& executor_;
};

}  // namespace

std::vector<const Document*> PickDocuments(const DocumentSet& set, std::int64_t most,
                                           std::int32_t tokens, std::uint64_t seed) {
  std::vector<std::vector<const Document*>> by_file(set.files.size());
  for (const Document& d : set.documents) by_file[d.file].push_back(&d);
  std::mt19937_64 random(seed);
  for (auto& documents : by_file) {
    // Not std::shuffle, whose order differs between libraries.
    for (std::size_t i = documents.size(); i > 1; --i) {
      std::swap(documents[i - 1], documents[random() % i]);
    }
    std::stable_sort(documents.begin(), documents.end(),
                     [tokens](const Document* a, const Document* b) {
                       const auto length = [tokens](const Document* d) {
                         return std::min(static_cast<std::int32_t>(d->tokens.size()), tokens);
                       };
                       return length(a) > length(b);
                     });
  }
  std::vector<const Document*> picked;
  const auto total = static_cast<std::int64_t>(set.documents.size());
  const std::int64_t wanted = most > 0 ? std::min(most, total) : total;
  for (std::size_t round = 0; static_cast<std::int64_t>(picked.size()) < wanted; ++round) {
    for (const auto& documents : by_file) {
      if (round < documents.size() && static_cast<std::int64_t>(picked.size()) < wanted) {
        picked.push_back(documents[round]);
      }
    }
  }
  return picked;
}

absl::StatusOr<Evaluation> Evaluate(const CalibrationPair& pair,
                                    const std::vector<NamedCodec>& codecs,
                                    const EvaluationTexts& texts, const Tokenizer& tokenizer,
                                    const EvaluationOptions& options, Executor& executor) {
  BATON_RETURN_IF_ERROR(CheckPair(pair.producer.model->config(), pair.consumer.model->config()));
  BATON_RETURN_IF_ERROR(CheckEvaluationOptions(options, pair.producer.model->config(),
                                               pair.consumer.model->config()));
  const std::int64_t vocab =
      std::min(pair.producer.model->config().vocab, pair.consumer.model->config().vocab);
  BATON_RETURN_IF_ERROR(CheckTokens(texts.documents, vocab));
  if (texts.questions) BATON_RETURN_IF_ERROR(CheckQuestionTokens(*texts.questions, vocab));
  BATON_ASSIGN_OR_RETURN(const std::vector<LayerRun> runs,
                         RunsToRecompute(pair, texts.documents, options, executor));
  BATON_ASSIGN_OR_RETURN(
      const std::vector<EvaluatedWay> ways,
      MakeWays(pair, codecs, options.cuts, runs, LongestPrefix(texts, options), executor));
  Evaluation e;
  e.producer_weights = pair.producer_weights;
  e.consumer_weights = pair.consumer_weights;
  e.tokenizer = pair.tokenizer;
  e.model = pair.consumer.model->config();
  for (const NamedCodec& c : codecs) {
    e.codecs.push_back({c.name, c.path, c.codec.Digest(), c.codec.bytes_per_token()});
  }
  e.options = options;
  e.options.progress = nullptr;
  e.files = texts.documents.files;
  e.documents_digest = texts.documents.Digest();
  e.answer_form = texts.form.chat ? std::string(texts.form.chat->name()) : "plain";
  if (texts.questions) {
    e.questions_path = texts.questions->path;
    e.questions_digest = texts.questions->Digest();
    e.questions_left_out = texts.questions->left_out;
  }
  const Evaluator evaluator(pair, texts, ways, tokenizer, options, executor);
  BATON_RETURN_IF_ERROR(evaluator.ScoreDocuments(e));
  BATON_RETURN_IF_ERROR(evaluator.Answer(e));
  return e;
}

}  // namespace baton
