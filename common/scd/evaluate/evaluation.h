// What serving a consumer from a producer's prefill costs in quality: every way and rate on the
// same documents and questions, against the consumer's own prefill ("oracle").
//
//   BATON_ASSIGN_OR_RETURN(const Evaluation e, Evaluate(pair, codecs, texts, options, executor));
//   const std::string json = EvaluationJson(e);       // evaluation_report.h
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/scd/calibrate/calibration.h"
#include "common/scd/calibrate/documents.h"
#include "common/scd/evaluate/answers.h"
#include "common/scd/evaluate/bootstrap.h"
#include "common/scd/evaluate/questions.h"
#include "common/scd/evaluate/state_error.h"
#include "common/scd/evaluate/ways.h"
#include "common/tokenizer/tokenizer.h"
#include "kernels/executor.h"

namespace baton {

struct EvaluationOptions {
  std::int32_t prefix = 1024;       // tokens, at most; a shorter document keeps a third to go on
  std::int32_t continuation = 256;  // tokens, at most
  std::int64_t documents = 64;      // at most; 0: all
  std::int64_t questions = 500;     // at most; 0: all
  std::int32_t max_answer = 64;     // tokens
  std::vector<double> cuts = {0.75, 0.5, 1.0 / 3, 0.25};  // of a codec's bytes
  // That choose which layers the baseline `selective` recomputes, of those that are not scored; 0,
  // or none left: it is left out.
  std::int64_t selective_documents = 4;
  int resamples = 2000;          // of the bootstrap
  std::uint64_t seed = 0;        // of documents and resamples
  CalibrationProgress progress;  // may be null
};

// What an evaluation reads.
struct EvaluationTexts {
  DocumentSet documents;                 // of at most prefix + continuation tokens
  std::optional<QuestionSet> questions;  // in the form of `form`
  AnswerForm form;
};

struct WayInfo {
  std::string name;
  std::string family;
  double bytes_per_token = 0;  // over the documents' prefixes
  bool is_default = false;
  double compute = 0;  // part of the layers that the consumer runs over the prefix
};

struct DocumentScore {
  std::size_t file = 0;
  std::int32_t prefix = 0;
  std::int32_t predictions = 0;
  std::vector<PredictionSums> sums;  // oracle, then each way
};

// Over the documents of one file, or all.
struct DocumentTable {
  struct Row {
    double kl = 0;
    double kl_error = 0;   // standard error over documents
    double kl_to_raw = 0;  // ratio, with its paired interval; 0 when raw loses nothing
    Interval kl_to_raw_95;
    double nll = 0;
    double nll_error = 0;   // of the difference to oracle
    double perplexity = 0;  // over the documents of full length, else over all
    double top1 = 0;
  };
  std::string name;
  std::int64_t documents = 0;
  std::int64_t predictions = 0;
  std::int64_t full_length = 0;  // documents with all of `prefix` and `continuation`
  double oracle_nll = 0;
  double oracle_perplexity = 0;
  std::vector<Row> rows;  // of each way
};

// Over the questions of one skill, or all.
struct AnswerTable {
  struct Row {
    std::string name;
    double exact = 0;
    double f1 = 0;
    Interval f1_change_95;  // of the difference to oracle, paired
    double nll = 0;         // nats a token of the reference answer
    double kl = 0;
  };
  std::string name;
  std::int64_t questions = 0;
  std::vector<Row> rows;  // oracle, then the ways that answer
};

struct Evaluation {
  // What was compared with what.
  std::string producer_weights, consumer_weights, tokenizer;
  ModelConfig model;
  struct CodecInfo {
    std::string name, path, digest;
    double bytes_per_token = 0;
  };
  std::vector<CodecInfo> codecs;
  EvaluationOptions options;
  // Which texts.
  std::vector<DocumentSet::File> files;
  std::string documents_digest;
  std::string questions_path, questions_digest;  // empty without
  std::int64_t questions_left_out = 0;
  std::string answer_form;

  std::vector<WayInfo> ways;
  std::vector<DocumentScore> documents;
  std::vector<DocumentTable> document_tables;  // all, then each file if there are several
  std::vector<StateErrors> state_errors;       // of each way, over all documents
  std::vector<std::string> answer_ways;        // "oracle", then those that answer
  std::vector<AnsweredQuestion> answers;
  std::vector<AnswerTable> answer_tables;  // all, then each skill if there are several
};

// Documents of a run: as many of each file as go, the longest first where some are shorter than
// `tokens`, else by the seed. Pointers are into `set`.
std::vector<const Document*> PickDocuments(const DocumentSet& set, std::int64_t most,
                                           std::int32_t tokens, std::uint64_t seed);

// Deterministic by the seed, whatever the number of threads. Errors: INVALID_ARGUMENT (a codec of
// another pair, an option out of range), RESOURCE_EXHAUSTED.
absl::StatusOr<Evaluation> Evaluate(const CalibrationPair& pair,
                                    const std::vector<NamedCodec>& codecs,
                                    const EvaluationTexts& texts, const Tokenizer& tokenizer,
                                    const EvaluationOptions& options, Executor& executor);

}  // namespace baton
