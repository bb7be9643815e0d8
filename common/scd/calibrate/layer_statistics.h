// What a producer and its consumers made of the same texts, layer by layer.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/scd/calibrate/documents.h"
#include "common/scd/calibrate/metric.h"
#include "common/scd/calibrate/model_probe.h"
#include "common/scd/calibrate/statistics.h"
#include "common/scd/codec.h"
#include "kernels/executor.h"

namespace baton {

// Called now and then with what is being done, how much of it is done, and how much there is.
using CalibrationProgress =
    std::function<void(std::string_view stage, std::int64_t done, std::int64_t total)>;

struct LayerStatistics {
  // Of the source, with these targets: the consumers' [K | V]; for source h the producer's own
  // (for source kv they are the source itself); with GatherOptions::inputs the consumer's.
  PairedSums sums;
  RowReservoir sample;  // of the source
  QuerySums producer_queries;
  std::vector<QuerySums> consumer_queries;
};

// Of the residual stream that enters a layer, at the producer and at the one consumer.
struct StreamStatistics {
  PairedSums sums;
  RowReservoir sample;  // of the producer's
};

struct CalibrationStatistics {
  CodeSource source = CodeSource::kHidden;
  std::size_t consumers = 1;
  std::int64_t tokens = 0;  // rows of each layer
  std::vector<LayerStatistics> layers;
  std::map<int, StreamStatistics> streams;  // by layer: those of GatherOptions::streams

  // Of the source and this consumer's own [K | V].
  Moments Consumer(std::size_t layer, std::size_t consumer = 0) const;
  // Of the source and the one consumer's normalised attention input; where inputs were gathered.
  Moments ConsumerInput(std::size_t layer) const;
  // Of the source and the producer's own [K | V].
  Moments Producer(std::size_t layer) const;
};

struct GatherOptions {
  CodeSource source = CodeSource::kHidden;
  // The consumer's as well, for patched layers; source kHidden and one consumer only.
  bool inputs = false;
  // Layers whose streams are looked at as well; source kHidden and one consumer only.
  std::set<int> streams = {};
  std::int64_t sample_rows = 4096;
  std::int32_t max_tokens = 0;  // of a document
  std::int64_t tokens = 0;      // of all, about: no further document is begun; 0: no limit
  std::uint64_t seed = 0;
  CalibrationProgress progress;  // in tokens; may be null
};

// All models go through each document in lockstep, so that the producer does once. At least one
// consumer; the models have layers, hidden, kv_heads and head_dim in common, and every token in
// their vocabularies. The first kSinkTokens rows of each document are left out. RESOURCE_EXHAUSTED
// as ModelProbe::Create; throws c10::Error when memory runs out.
absl::StatusOr<CalibrationStatistics> GatherStatistics(const ProbedModel& producer,
                                                       absl::Span<const ProbedModel> consumers,
                                                       absl::Span<const Document* const> documents,
                                                       const GatherOptions& options,
                                                       Executor& executor);

}  // namespace baton
