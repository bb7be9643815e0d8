// A run of layers that the consumer computes itself over the prefix, from the residual stream that
// enters the first of them; all other layers come another way.
//
// The first kSinkTokens rows of that stream are the consumer's own, as in every layer.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "common/scd/calibrate/model_probe.h"
#include "common/scd/calibrate/prefix_way.h"
#include "common/weights/layer_run.h"
#include "kernels/executor.h"

namespace baton {

// What enters the run at the consumer, [rows, hidden], of what the producer has at its first layer.
// The first kSinkTokens rows mean nothing.
using StreamSource = std::function<void(const ProducerRows&, float* stream)>;

// The producer's own stream, [rows, hidden].
StreamSource ProducerStream(std::int64_t hidden);

// `others`, by its name, but for the layers of `run`. Prefixes of at most `max_tokens`.
// RESOURCE_EXHAUSTED when the pages for them cannot be had. `executor` must outlive it.
absl::StatusOr<PrefixWay> RecomputedWay(const PrefixWay& others, LayerRun run, StreamSource stream,
                                        const ProbedModel& consumer, std::int32_t max_tokens,
                                        Executor& executor);

}  // namespace baton
