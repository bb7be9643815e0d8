#include "common/scd/calibrate/layer_statistics.h"

#include <utility>

#include "common/base/status_macros.h"

namespace baton {
namespace {

std::vector<LayerStatistics> EmptyLayers(const ProbedModel& producer, const ProbedModel& consumer,
                                         const GatherOptions& options) {
  const ModelConfig& p = producer.model->config();
  const ModelConfig& c = consumer.model->config();
  const bool hidden = options.source == CodeSource::kHidden;
  const std::int64_t kv = 2 * p.kv_heads * p.head_dim;
  const std::int64_t width = hidden ? p.hidden : kv;
  std::vector<std::int64_t> targets = {kv};
  if (hidden) targets.push_back(kv);
  if (options.inputs) targets.push_back(c.hidden);
  std::vector<LayerStatistics> layers;
  for (std::int64_t l = 0; l < p.layers; ++l) {
    layers.push_back({PairedSums(width, targets),
                      RowReservoir(width, options.sample_rows, options.seed),
                      QuerySums(p.heads, p.head_dim), QuerySums(c.heads, c.head_dim)});
  }
  return layers;
}

void AddLayer(const LayerStates& producer, const LayerStates& consumer,
              const GatherOptions& options, LayerStatistics& to, Executor& executor) {
  const std::int64_t rows = producer.rows - kSinkTokens;
  const auto after_sinks = [&](const std::vector<float>& values) {
    return values.data() + static_cast<std::int64_t>(values.size()) / producer.rows * kSinkTokens;
  };
  const float* own = after_sinks(producer.kv);
  const float* x = options.source == CodeSource::kHidden ? after_sinks(producer.hidden) : own;
  to.sums.Add(rows, x, {after_sinks(consumer.kv), own, after_sinks(consumer.hidden)}, executor);
  to.sample.Add(rows, x);
  to.producer_queries.Add(producer, kSinkTokens);
  to.consumer_queries.Add(consumer, kSinkTokens);
}

}  // namespace

Moments PairStatistics::Consumer(std::size_t layer) const {
  return layers[layer].sums.Finish(kConsumer);
}

Moments PairStatistics::ConsumerInput(std::size_t layer) const {
  return layers[layer].sums.Finish(kInput);
}

Moments PairStatistics::Producer(std::size_t layer) const {
  if (source == CodeSource::kHidden) return layers[layer].sums.Finish(kProducer);
  Moments m = layers[layer].sums.Finish(kConsumer);
  m.target_mean = m.source_mean;
  m.target = m.source;
  m.cross = m.source;
  return m;
}

absl::StatusOr<PairStatistics> GatherStatistics(const ProbedModel& producer,
                                                const ProbedModel& consumer,
                                                absl::Span<const Document* const> documents,
                                                const GatherOptions& options, Executor& executor) {
  BATON_ASSIGN_OR_RETURN(auto producing,
                         ModelProbe::Create(producer, options.max_tokens, executor));
  BATON_ASSIGN_OR_RETURN(auto consuming,
                         ModelProbe::Create(consumer, options.max_tokens, executor));
  PairStatistics statistics;
  statistics.source = options.source;
  statistics.layers = EmptyLayers(producer, consumer, options);
  std::int64_t total = 0;
  for (const Document* d : documents) total += static_cast<std::int64_t>(d->tokens.size());
  if (options.tokens > 0) total = std::min(total, options.tokens);
  std::int64_t done = 0;
  for (const Document* d : documents) {
    const auto n = static_cast<std::int64_t>(d->tokens.size());
    if (n > kSinkTokens) {
      producing->Start(d->tokens);
      consuming->Start(d->tokens);
      for (std::size_t l = 0; l < statistics.layers.size(); ++l) {
        const int layer = static_cast<int>(l);
        AddLayer(producing->RunLayer(layer), consuming->RunLayer(layer), options,
                 statistics.layers[l], executor);
      }
      statistics.tokens += n - kSinkTokens;
    }
    done += n;
    if (options.progress) {
      options.progress("gathering statistics", std::min(done, total), total);
    }
    if (done >= total) break;
  }
  return statistics;
}

}  // namespace baton
