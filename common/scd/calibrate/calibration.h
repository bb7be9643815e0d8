// From models and texts to codecs: statistics of all of them, candidates, and the choice among
// these by what they do to the consumers' predictions on held-out texts.
//
//   CalibrationPair pair = {.producer = ..., .consumer = ..., ...};
//   BATON_ASSIGN_OR_RETURN(CalibrationResult r, Calibrate(pair, documents, options, executor));
//   BATON_RETURN_IF_ERROR(SaveCodec(r.codec, "codec.safetensors"));
//
// Least squares towards the consumer's states is not always the better codec: where the consumer
// has learned new skills, regression to the mean can cost more than alignment wins. So `raw` (the
// producer's own K/V, coded) is always a candidate, another one starts at the best of them and is
// trained for the consumer's predictions (kl_training.h), and the lowest held-out KL is what is
// kept. On request layers of the best of them are patched (patch.h), which makes further
// candidates. A run of layers that the consumer computes itself (run_code.h) is asked for and not
// proposed, since it costs compute that no KL shows: with runs, the best candidate with one is what
// is kept.
//
// Several consumers of one producer can have one code: the encoder is fitted for all of them
// together, each has a decoder of its own, trained from a common start, and the encoder that is
// kept is the one that is best for all of them (shared_choice.h). It serves each a little worse
// than a code of its own would; a prefill node makes and stores it once.
//
// Source of the idea: arXiv 2606.07684, section 4 (REUSE).
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/scd/calibrate/calibration_group.h"
#include "common/scd/calibrate/calibration_options.h"
#include "common/scd/calibrate/documents.h"
#include "common/scd/calibrate/held_out.h"
#include "common/scd/codec.h"
#include "kernels/executor.h"

namespace baton {

struct CalibrationResult {
  Codec codec;  // with its report
  std::string chosen;
  // Uncoded raw K/V first, then each candidate, then each candidate with each seam.
  HeldOutScores scores;
  std::vector<double> bytes_per_token;  // of each of these ways
};

// Deterministic by the seed, whatever the number of threads. Errors: INVALID_ARGUMENT (as
// CheckGroup, CheckOptions and CheckTokens; too few documents), RESOURCE_EXHAUSTED, INTERNAL with
// what Torch said.
absl::StatusOr<CalibrationResult> Calibrate(const CalibrationPair& pair, const DocumentSet& set,
                                            const CalibrationOptions& options, Executor& executor);

// The same for all consumers of a group, whose codecs have one encoder (Codec::EncoderDigest): one
// result for each, in their order. Of one consumer it is what Calibrate gives.
absl::StatusOr<std::vector<CalibrationResult>> CalibrateShared(const CalibrationGroup& group,
                                                               const DocumentSet& set,
                                                               const CalibrationOptions& options,
                                                               Executor& executor);

// Every file that a calibration may keep at CalibrationOptions::checkpoints, which is not empty.
std::vector<std::string> CheckpointFiles(const CalibrationGroup& group,
                                         const CalibrationOptions& options);

}  // namespace baton
