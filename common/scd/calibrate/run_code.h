// The code of a run of layers: of the residual stream that enters the first of them, which the
// consumer goes on from with its own layers (codec.h).
//
//   CodecLayer stream = StreamLayer(consumer, statistics, metric, base, {9, 24}, ridge);
//   Codec codec = WithRun(base, {9, 24}, stream);
//
// A reduced-rank regression from the producer's stream to the consumer's, with a ridge towards the
// producer's own. What an error of it costs is what it does to K and V of the run's layers, as far
// as the stream carries it on unchanged: the sum over these layers of their metrics of K/V, each
// carried back through the layer's norm and projection. So an importance is in the units of other
// layers', and cuts weigh the stream against them. What the run's layers add to an error, and what
// they turn it into, is left aside.
#pragma once

#include <string>
#include <vector>

#include "common/scd/calibrate/layer_statistics.h"
#include "common/scd/calibrate/matrix.h"
#include "common/scd/calibrate/model_probe.h"
#include "common/scd/codec.h"
#include "common/weights/layer_run.h"

namespace baton {

// [hidden, hidden], of the stream that enters `run`. `statistics` with inputs; `metric`: of the
// consumer's K/V, one a layer. Throws c10::Error.
Matrix StreamMetric(const ProbedModel& consumer, const CalibrationStatistics& statistics,
                    const std::vector<Matrix>& metric, LayerRun run);

// The first layer of `run`, within the bits that its layers have in `base`. `statistics` with
// inputs and the stream there. Throws c10::Error.
CodecLayer StreamLayer(const ProbedModel& consumer, const CalibrationStatistics& statistics,
                       const std::vector<Matrix>& metric, const Codec& base, LayerRun run,
                       double ridge);

// `base` with `stream` for the layers of `run`; the others stay as they are.
Codec WithRun(const Codec& base, LayerRun run, const CodecLayer& stream);

}  // namespace baton
