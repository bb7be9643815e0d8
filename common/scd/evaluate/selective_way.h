// Recomputing some layers, as a baseline: the producer's own K/V, but for a run of layers that the
// consumer computes itself over the prefix, from the producer's hidden state where the run begins.
//
// Source: DroidSpeak (arXiv 2411.02820), whose groups of layers are profiled per pair as well.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/scd/calibrate/documents.h"
#include "common/scd/calibrate/held_out.h"
#include "common/scd/calibrate/model_probe.h"
#include "common/scd/calibrate/prefix_way.h"
#include "common/weights/layer_run.h"
#include "kernels/executor.h"

namespace baton {

// "selective:8-15" (the last one included) for prefixes of at most `max_tokens`. Errors and
// `executor`: as RecomputedWay.
absl::StatusOr<PrefixWay> SelectiveWay(const ProbedModel& consumer, LayerRun recomputed,
                                       std::int32_t max_tokens, Executor& executor);

// What it sends for a token: fp16 K/V of the other layers, and one fp16 hidden state.
double SelectiveBytes(const ModelConfig& config, LayerRun recomputed);

// For a quarter, a half and three quarters of the layers, the run with the lowest KL on `documents`
// (at least one), of starts an eighth of the layers apart.
absl::StatusOr<std::vector<LayerRun>> ChooseLayerRuns(const ProbedModel& producer,
                                                      const ProbedModel& consumer,
                                                      absl::Span<const Document* const> documents,
                                                      const HeldOutOptions& options,
                                                      Executor& executor);

}  // namespace baton
