// How well a consumer goes on from a prefix whose K/V came another way than its own prefill.
//
// Each held-out document is cut into a prefix and a continuation. The consumer runs the
// continuation over its own K/V of the prefix (the reference) and again over those of each way,
// with the first kSinkTokens rows always its own; what it predicts for each token of the
// continuation but the first is compared: KL(reference || way), whether the likeliest token is the
// same, and the negative log-likelihood of the token that does follow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/scd/calibrate/documents.h"
#include "common/scd/calibrate/hand_over.h"
#include "common/scd/calibrate/layer_statistics.h"
#include "common/scd/calibrate/model_probe.h"
#include "common/scd/calibrate/prefix_way.h"
#include "kernels/executor.h"

namespace baton {

// Over all predicted tokens; `_error` is the standard error of the mean over documents, weighted by
// their tokens (0 with one document).
struct WayScore {
  std::string name;
  double kl = 0;  // nats
  double kl_error = 0;
  double nll = 0;   // nats
  double top1 = 0;  // part of the tokens with the reference's likeliest token
};

struct HeldOutScores {
  std::int64_t documents = 0;
  std::int64_t tokens = 0;     // predicted
  double reference_nll = 0;    // of the consumer's own prefill
  std::vector<WayScore> ways;  // as given
};

// Over the predicted tokens of one document, by one cache.
struct PredictionSums {
  double kl = 0;   // nats
  double nll = 0;  // nats
  std::int64_t same = 0;
};

// Sees what scoring goes through. Cache 0 is the reference, cache w + 1 that of ways[w].
class HeldOutWatch {
 public:
  virtual ~HeldOutWatch() = default;
  // The prefix, `rows` tokens, is in every cache, and nothing after it.
  virtual void OnPrefix(HandOver& /*handed*/, std::int32_t /*rows*/) {}
  // Hidden states [rows, hidden] of the continuation after a layer: cache by cache, layers in
  // order.
  virtual void OnHidden(std::size_t /*cache*/, int /*layer*/, std::int64_t /*rows*/,
                        const float* /*hidden*/) {}
  // A document is done; sums of each cache.
  virtual void OnDocument(const Document& /*document*/, const DocumentCut& /*cut*/,
                          absl::Span<const PredictionSums> /*sums*/) {}
};

struct HeldOutOptions {
  std::int32_t prefix = 512;        // tokens, at most; a shorter document keeps a third to go on
  std::int32_t continuation = 128;  // tokens, at most
  CalibrationProgress progress;     // in documents; may be null
  HeldOutWatch* watch = nullptr;    // may be null
};

// Compares predictions with those over the reference. Used for answers as well as for documents.
class PredictionScorer {
 public:
  PredictionScorer(ForwardPass& pass, std::int64_t vocab, Executor& executor)
      : pass_(pass), vocab_(vocab), executor_(executor) {}

  // hidden[i] [rows, hidden] are the final states of the same tokens over cache i; rows begin,
  // ..., end - 1 predict targets[begin], .... Adds to sums[i].
  void Add(const std::vector<std::vector<float>>& hidden, std::int32_t begin, std::int32_t end,
           const std::int32_t* targets, absl::Span<PredictionSums> sums);

 private:
  void AddRows(const std::vector<std::vector<float>>& hidden, std::int32_t begin, std::int32_t end,
               const std::int32_t* targets, absl::Span<PredictionSums> sums);

  ForwardPass& pass_;
  const std::int64_t vocab_;
  Executor& executor_;
  std::vector<double> reference_;  // log p [rows, vocab]
};

// Standard error of sum(values) / sum(weights), entries being independent; 0 of one entry.
double RatioError(const std::vector<double>& values, const std::vector<double>& weights);

// At least one document, each of kMinDocumentTokens or more. RESOURCE_EXHAUSTED when the pages
// cannot be had.
absl::StatusOr<HeldOutScores> ScoreHeldOut(const ProbedModel& producer, const ProbedModel& consumer,
                                           absl::Span<const Document* const> documents,
                                           absl::Span<const PrefixWay> ways,
                                           const HeldOutOptions& options, Executor& executor);

}  // namespace baton
