// What errors cost at each model of a calibration (metric.h), on one scale for all of them.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/scd/calibrate/calibration_group.h"
#include "common/scd/calibrate/calibration_options.h"
#include "common/scd/calibrate/documents.h"
#include "common/scd/calibrate/layer_statistics.h"
#include "common/scd/calibrate/matrix.h"
#include "kernels/executor.h"

namespace baton {

// Of [K | V], one matrix a layer.
struct TargetMetrics {
  std::vector<Matrix> producer;
  std::vector<std::vector<Matrix>> consumers;
};

// CalibrationOptions::metric of all models; `documents` are those that `statistics` are of.
// RESOURCE_EXHAUSTED. Throws c10::Error.
absl::StatusOr<TargetMetrics> MakeTargetMetrics(const CalibrationGroup& group,
                                                const CalibrationStatistics& statistics,
                                                absl::Span<const Document* const> documents,
                                                const CalibrationOptions& options,
                                                Executor& executor);

}  // namespace baton
