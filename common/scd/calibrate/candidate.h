// A codec in the making: a linear code for every layer, its components' bits chosen together under
// one budget, their levels from the sample.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/scd/calibrate/layer_statistics.h"
#include "common/scd/calibrate/matrix.h"
#include "common/scd/calibrate/regression.h"
#include "common/scd/calibrate/separate_code.h"
#include "common/scd/codec.h"
#include "kernels/executor.h"

namespace baton {

enum class CodeTarget {
  kProducer,  // decodes to the producer's own K/V: raw pass-through, coded
  kConsumer,  // to the consumer's, with the producer's own map as the prior
};

struct CandidateSpec {
  std::string name;
  CodeTarget target = CodeTarget::kConsumer;
  RegressionOptions regression;
  // Codes of K and V by themselves (target kConsumer); otherwise of both together.
  std::optional<SeparateRanks> separate = {};
  std::uint8_t component_bits = 0;  // of every component; 0: each has what it is worth
};

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
};

// The metrics of the two targets, one matrix a layer.
struct TargetMetrics {
  std::vector<Matrix> producer;
  std::vector<Matrix> consumer;
};

// `code` with offset and mean, its components' bits given out within `budget_bits`, at least one;
// levels are from the sample. Reuse by kind; the caller knows what it decodes to.
CodecLayer QuantisedLayer(const LinearCode& code, const std::vector<double>& mean,
                          const std::vector<double>& offset, const RowReservoir& sample,
                          std::int64_t budget_bits);

// At most `budget_bits` per token in all, at least one in every layer. Throws c10::Error when a
// decomposition does not converge.
Candidate MakeCandidate(const CandidateSpec& spec, const PairStatistics& statistics,
                        const TargetMetrics& metrics, std::int64_t budget_bits,
                        const CalibrationProgress& progress, Executor& executor);

}  // namespace baton
