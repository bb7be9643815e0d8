#include "common/scd/calibrate/layer_statistics.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"

namespace baton {
namespace {

std::vector<LayerStatistics> EmptyLayers(const ProbedModel& producer,
                                         absl::Span<const ProbedModel> consumers,
                                         const GatherOptions& options) {
  const ModelConfig& p = producer.model->config();
  const bool hidden = options.source == CodeSource::kHidden;
  const std::int64_t kv = 2 * p.kv_heads * p.head_dim;
  const std::int64_t width = hidden ? p.hidden : kv;
  std::vector<std::int64_t> targets(consumers.size(), kv);
  if (hidden) targets.push_back(kv);
  if (options.inputs) targets.push_back(p.hidden);
  std::vector<QuerySums> queries;
  for (const ProbedModel& consumer : consumers) {
    queries.emplace_back(consumer.model->config().heads, p.head_dim);
  }
  std::vector<LayerStatistics> layers;
  for (std::int64_t l = 0; l < p.layers; ++l) {
    layers.push_back({PairedSums(width, targets),
                      RowReservoir(width, options.sample_rows, options.seed),
                      QuerySums(p.heads, p.head_dim), queries});
  }
  return layers;
}

void AddLayer(const LayerStates& producer, absl::Span<const LayerStates* const> consumers,
              const GatherOptions& options, LayerStatistics& to, Executor& executor) {
  const std::int64_t rows = producer.rows - kSinkTokens;
  const auto after_sinks = [&](const std::vector<float>& values) {
    return values.data() + static_cast<std::int64_t>(values.size()) / producer.rows * kSinkTokens;
  };
  const float* own = after_sinks(producer.kv);
  const float* x = options.source == CodeSource::kHidden ? after_sinks(producer.hidden) : own;
  std::vector<const float*> targets;
  for (const LayerStates* consumer : consumers) targets.push_back(after_sinks(consumer->kv));
  targets.push_back(own);
  targets.push_back(after_sinks(consumers.front()->hidden));
  to.sums.Add(rows, x, targets, executor);
  to.sample.Add(rows, x);
  to.producer_queries.Add(producer, kSinkTokens);
  for (std::size_t i = 0; i < consumers.size(); ++i) {
    to.consumer_queries[i].Add(*consumers[i], kSinkTokens);
  }
}

// The stream after the first rows: the normalised input times its rms.
std::vector<float> StreamOf(const LayerStates& states) {
  std::vector<float> stream(states.hidden);
  const std::size_t width = stream.size() / static_cast<std::size_t>(states.rows);
  for (std::size_t i = 0; i < stream.size(); ++i) stream[i] *= states.rms[i / width];
  stream.erase(stream.begin(), stream.begin() + static_cast<std::ptrdiff_t>(width * kSinkTokens));
  return stream;
}

void AddStream(const LayerStates& producer, const LayerStates& consumer, StreamStatistics& to,
               Executor& executor) {
  const std::vector<float> from = StreamOf(producer), own = StreamOf(consumer);
  const std::int64_t rows = producer.rows - kSinkTokens;
  to.sums.Add(rows, from.data(), {own.data()}, executor);
  to.sample.Add(rows, from.data());
}

}  // namespace

Moments CalibrationStatistics::Consumer(std::size_t layer, std::size_t consumer) const {
  return layers[layer].sums.Finish(consumer);
}

Moments CalibrationStatistics::ConsumerInput(std::size_t layer) const {
  return layers[layer].sums.Finish(consumers + 1);
}

Moments CalibrationStatistics::Producer(std::size_t layer) const {
  if (source == CodeSource::kHidden) return layers[layer].sums.Finish(consumers);
  Moments m = layers[layer].sums.Finish(0);
  m.target_mean = m.source_mean;
  m.target = m.source;
  m.cross = m.source;
  return m;
}

absl::StatusOr<CalibrationStatistics> GatherStatistics(const ProbedModel& producer,
                                                       absl::Span<const ProbedModel> consumers,
                                                       absl::Span<const Document* const> documents,
                                                       const GatherOptions& options,
                                                       Executor& executor) {
  BATON_ASSIGN_OR_RETURN(auto producing,
                         ModelProbe::Create(producer, options.max_tokens, executor));
  std::vector<std::unique_ptr<ModelProbe>> consuming;
  for (const ProbedModel& consumer : consumers) {
    BATON_ASSIGN_OR_RETURN(consuming.emplace_back(),
                           ModelProbe::Create(consumer, options.max_tokens, executor));
  }
  CalibrationStatistics statistics;
  statistics.source = options.source;
  statistics.consumers = consumers.size();
  statistics.layers = EmptyLayers(producer, consumers, options);
  const std::int64_t hidden = producer.model->config().hidden;
  for (const int layer : options.streams) {
    statistics.streams.emplace(
        layer, StreamStatistics{PairedSums(hidden, {hidden}),
                                RowReservoir(hidden, options.sample_rows, options.seed)});
  }
  std::int64_t total = 0;
  for (const Document* d : documents) total += static_cast<std::int64_t>(d->tokens.size());
  if (options.tokens > 0) total = std::min(total, options.tokens);
  std::int64_t done = 0;
  std::vector<const LayerStates*> states(consumers.size());
  for (const Document* d : documents) {
    const auto n = static_cast<std::int64_t>(d->tokens.size());
    if (n > kSinkTokens) {
      producing->Start(d->tokens);
      for (const auto& probe : consuming) probe->Start(d->tokens);
      for (std::size_t l = 0; l < statistics.layers.size(); ++l) {
        const int layer = static_cast<int>(l);
        const LayerStates& own = producing->RunLayer(layer);
        for (std::size_t i = 0; i < consuming.size(); ++i) {
          states[i] = &consuming[i]->RunLayer(layer);
        }
        AddLayer(own, states, options, statistics.layers[l], executor);
        if (const auto to = statistics.streams.find(layer); to != statistics.streams.end()) {
          AddStream(own, *states.front(), to->second, executor);
        }
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
