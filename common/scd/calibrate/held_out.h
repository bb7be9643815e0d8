// How well a consumer goes on from a prefix whose K/V came another way than its own prefill.
//
// Each held-out document is cut into a prefix and a continuation. The consumer runs the
// continuation over its own K/V of the prefix (the reference) and again over those of each way,
// with the first kSinkRows rows always its own; what it predicts for each token of the continuation
// but the first is compared: KL(reference || way), whether the likeliest token is the same, and the
// negative log-likelihood of the token that does follow.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/scd/calibrate/documents.h"
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

struct HeldOutOptions {
  std::int32_t prefix = 512;        // tokens, at most; a shorter document keeps a third to go on
  std::int32_t continuation = 128;  // tokens, at most
  CalibrationProgress progress;     // in documents; may be null
};

// At least one document, each of kMinDocumentTokens or more. RESOURCE_EXHAUSTED when the pages
// cannot be had.
absl::StatusOr<HeldOutScores> ScoreHeldOut(const ProbedModel& producer, const ProbedModel& consumer,
                                           absl::Span<const Document* const> documents,
                                           absl::Span<const PrefixWay> ways,
                                           const HeldOutOptions& options, Executor& executor);

}  // namespace baton
