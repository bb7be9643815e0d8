#include "common/scd/evaluate/selective_way.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/scd/calibrate/recomputed_way.h"

namespace baton {
namespace {

constexpr double kHalfBytes = 2;

}  // namespace

absl::StatusOr<PrefixWay> SelectiveWay(const ProbedModel& consumer, LayerRun recomputed,
                                       std::int32_t max_tokens, Executor& executor) {
  return RecomputedWay(UncodedWay(Cat("selective:", LayerRunText(recomputed)), consumer, executor),
                       recomputed, ProducerStream(consumer.model->config().hidden), consumer,
                       max_tokens, executor);
}

double SelectiveBytes(const ModelConfig& config, LayerRun recomputed) {
  const auto kv = static_cast<double>(2 * config.kv_heads * config.head_dim);
  const auto sent = static_cast<double>(config.layers - recomputed.size());
  return kHalfBytes * (sent * kv + static_cast<double>(config.hidden));
}

absl::StatusOr<std::vector<LayerRun>> ChooseLayerRuns(const ProbedModel& producer,
                                                      const ProbedModel& consumer,
                                                      absl::Span<const Document* const> documents,
                                                      const HeldOutOptions& options,
                                                      Executor& executor) {
  const auto layers = static_cast<int>(consumer.model->config().layers);
  const int step = std::max(1, layers / 8);
  std::vector<LayerRun> chosen;
  for (const int quarters : {1, 2, 3}) {
    const int size = std::max(1, layers * quarters / 4);
    std::vector<LayerRun> runs;
    std::vector<PrefixWay> ways;
    for (int begin = 0; begin + size <= layers; begin += step) {
      runs.push_back({begin, begin + size});
      BATON_ASSIGN_OR_RETURN(PrefixWay way,
                             SelectiveWay(consumer, runs.back(), options.prefix, executor));
      ways.push_back(std::move(way));
    }
    BATON_ASSIGN_OR_RETURN(const HeldOutScores scores,
                           ScoreHeldOut(producer, consumer, documents, ways, options, executor));
    const auto best =
        std::min_element(scores.ways.begin(), scores.ways.end(),
                         [](const WayScore& a, const WayScore& b) { return a.kl < b.kl; });
    chosen.push_back(runs[static_cast<std::size_t>(best - scores.ways.begin())]);
  }
  return chosen;
}

}  // namespace baton
