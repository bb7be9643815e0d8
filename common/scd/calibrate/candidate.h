// A codec in the making: a linear code for every layer, its components' bits chosen together under
// one budget, their levels from the sample. For several consumers it is one code (scd.md, "Shared
// encoder"): all but decoders and offsets have the same bits for all of them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/scd/calibrate/layer_statistics.h"
#include "common/scd/calibrate/matrix.h"
#include "common/scd/calibrate/regression.h"
#include "common/scd/calibrate/separate_code.h"
#include "common/scd/calibrate/target_metrics.h"
#include "common/scd/codec.h"
#include "kernels/executor.h"

namespace baton {

enum class CodeTarget {
  kProducer,  // decodes to the producer's own K/V: raw pass-through, coded
  // To the consumer's, with the producer's own map as the prior; a code of several consumers: to
  // all of theirs at once.
  kConsumer,
};

struct CandidateSpec {
  std::string name;
  CodeTarget target = CodeTarget::kConsumer;
  RegressionOptions regression;
  // Codes of K and V by themselves (target kConsumer, of one consumer); otherwise of both together.
  std::optional<SeparateRanks> separate = {};
  std::uint8_t component_bits = 0;  // of every component; 0: each has what it is worth
};

// Of one consumer.
struct Candidate {
  CandidateSpec spec;
  std::vector<CodecLayer> layers;
  // E |y - y'|_W^2 / E |y - mean y|_W^2 of each layer on the calibration rows: y the consumer's
  // [K | V], y' decoded from quantised codes, W the consumer's metric.
  std::vector<double> relative_error;
  // Of one that was trained (kl_training.h), by epoch; empty for the others, as relative_error is
  // for it: its measure is another.
  std::vector<double> judged_kl;
  std::string trained_from;  // the candidate that it was before
  // Of one with a run: the candidate whose codes its other layers have.
  std::string run_base = {};
};

// `code` with offset and mean, its components' bits given out within `budget_bits`, at least one;
// levels are from the sample. Reuse by kind; the caller knows what it decodes to.
CodecLayer QuantisedLayer(const LinearCode& code, const std::vector<double>& mean,
                          const std::vector<double>& offset, const RowReservoir& sample,
                          std::int64_t budget_bits);

// One for each consumer of `statistics`. At most `budget_bits` per token in all, at least one in
// every layer. Throws c10::Error when a decomposition does not converge.
std::vector<Candidate> MakeCandidates(const CandidateSpec& spec,
                                      const CalibrationStatistics& statistics,
                                      const TargetMetrics& metrics, std::int64_t budget_bits,
                                      const CalibrationProgress& progress, Executor& executor);

}  // namespace baton
