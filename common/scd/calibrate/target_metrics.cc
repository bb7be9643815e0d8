#include "common/scd/calibrate/target_metrics.h"

#include <cstddef>
#include <cstdint>
#include <utility>

#include "common/base/status_macros.h"
#include "common/scd/calibrate/fisher.h"
#include "common/scd/calibrate/tensors.h"

namespace baton {
namespace {

absl::StatusOr<std::vector<Matrix>> Fisher(const ProbedModel& model,
                                           absl::Span<const Document* const> documents,
                                           const CalibrationOptions& options, Executor& executor) {
  return FisherMetric(model, documents,
                      {.documents = options.fisher_documents,
                       .prefix = options.prefix,
                       .continuation = options.continuation,
                       .seed = options.seed,
                       .progress = options.progress},
                      executor);
}

}  // namespace

absl::StatusOr<TargetMetrics> MakeTargetMetrics(const CalibrationGroup& group,
                                                const CalibrationStatistics& statistics,
                                                absl::Span<const Document* const> documents,
                                                const CalibrationOptions& options,
                                                Executor& executor) {
  TargetMetrics metrics;
  if (options.metric == Metric::kFisher) {
    BATON_ASSIGN_OR_RETURN(metrics.producer, Fisher(group.producer, documents, options, executor));
    for (const CalibrationConsumer& c : group.consumers) {
      BATON_ASSIGN_OR_RETURN(metrics.consumers.emplace_back(),
                             Fisher(c.model, documents, OptionsOf(c, group, options), executor));
    }
    return metrics;
  }
  const ModelConfig& config = group.producer.model->config();
  const std::size_t layers = statistics.layers.size();
  metrics.producer.resize(layers);
  metrics.consumers.assign(group.consumers.size(), std::vector<Matrix>(layers));
  ForEach(executor, config.layers, [&](std::int64_t layer) {
    const auto l = static_cast<std::size_t>(layer);
    const int index = static_cast<int>(layer);
    const LayerStatistics& of = statistics.layers[l];
    const bool identity = options.metric == Metric::kIdentity;
    const std::int64_t width = 2 * config.kv_heads * config.head_dim;
    metrics.producer[l] = identity ? Matrix::Identity(width)
                                   : HeuristicMetric(group.producer, index, of.producer_queries,
                                                     statistics.Producer(l).target, options.prefix);
    for (std::size_t c = 0; c < group.consumers.size(); ++c) {
      metrics.consumers[c][l] =
          identity ? Matrix::Identity(width)
                   : HeuristicMetric(group.consumers[c].model, index, of.consumer_queries[c],
                                     statistics.Consumer(l, c).target, options.prefix);
    }
  });
  return metrics;
}

}  // namespace baton
