#include "common/scd/calibrate/run_code.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>

#include "common/scd/calibrate/candidate.h"
#include "common/scd/calibrate/patch.h"
#include "common/scd/calibrate/regression.h"
#include "common/scd/calibrate/tensors.h"

namespace baton {
namespace {

std::int64_t BitsOf(const Codec& codec, LayerRun run) {
  std::int64_t bits = 0;
  for (int l = run.begin; l < run.end; ++l) {
    const auto& of = codec.layers[static_cast<std::size_t>(l)].bits;
    bits = std::accumulate(of.begin(), of.end(), bits);
  }
  return bits;
}

}  // namespace

Matrix StreamMetric(const ProbedModel& consumer, const CalibrationStatistics& statistics,
                    const std::vector<Matrix>& metric, LayerRun run) {
  const std::int64_t hidden = consumer.model->config().hidden;
  Matrix sum(hidden, hidden);
  for (int layer = run.begin; layer < run.end; ++layer) {
    const auto l = static_cast<std::size_t>(layer);
    const Matrix of_input = InputMetric(consumer, l, metric[l], statistics.ConsumerInput(l));
    // The norm divides the stream by its rms.
    const double square =
        statistics.layers[l].consumer_queries.front().Energy() / static_cast<double>(hidden);
    View(sum).add_(View(of_input), 1 / std::max(square, 1e-30));
  }
  return sum;
}

CodecLayer StreamLayer(const ProbedModel& consumer, const CalibrationStatistics& statistics,
                       const std::vector<Matrix>& metric, const Codec& base, LayerRun run,
                       double ridge) {
  const StreamStatistics& stream = statistics.streams.at(run.begin);
  const Moments moments = stream.sums.Finish(0);
  const LinearCode code = FitLinearCode(
      moments, StreamMetric(consumer, statistics, metric, run),
      Matrix::Identity(moments.source.rows),
      {.factorisation = Factorisation::kReducedRank, .ridge = ridge, .max_rank = kMaxCodecRank});
  CodecLayer layer = QuantisedLayer(code, moments.source_mean, moments.target_mean, stream.sample,
                                    BitsOf(base, run));
  layer.kind = LayerKind::kStream;
  return layer;
}

Codec WithRun(const Codec& base, LayerRun run, const CodecLayer& stream) {
  Codec codec = base;
  for (int l = run.begin; l < run.end; ++l) {
    CodecLayer& layer = codec.layers[static_cast<std::size_t>(l)];
    layer = l == run.begin ? stream : CodecLayer{};
    if (l != run.begin) layer.kind = LayerKind::kNative;
  }
  return codec;
}

}  // namespace baton
