// The Fisher metric of a layer's [K | V]: what an error of it costs, measured at the output.
//
//   W = E sum over prefix rows of g g^T,   g = d log p(sampled continuation) / d [K | V]
//
// The labels are sampled from the consumer's own predictions, so that |e|_W^2 is, to second order
// and per direction, twice the KL that the error makes. Rows of the sinks, which never travel, are
// left out.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/scd/calibrate/documents.h"
#include "common/scd/calibrate/layer_statistics.h"
#include "common/scd/calibrate/matrix.h"
#include "common/scd/calibrate/model_probe.h"
#include "kernels/executor.h"

namespace baton {

struct FisherOptions {
  std::int64_t documents = 32;      // at most
  std::int32_t prefix = 512;        // tokens of a document, at most
  std::int32_t continuation = 128;  // after it, at most
  std::uint64_t seed = 0;
  CalibrationProgress progress;  // in documents; may be null
};

// One matrix [2 * kv_dim, 2 * kv_dim] a layer, all on one scale; 1/1000 of the mean cost is added
// to each direction. At least one document. RESOURCE_EXHAUSTED. Throws c10::Error.
absl::StatusOr<std::vector<Matrix>> FisherMetric(const ProbedModel& model,
                                                 absl::Span<const Document* const> documents,
                                                 const FisherOptions& options, Executor& executor);

}  // namespace baton
