// What both models of a pair made of the same texts, layer by layer.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
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
  PairedSums sums;      // of the source, with the targets of PairStatistics
  RowReservoir sample;  // of the source
  QuerySums producer_queries;
  QuerySums consumer_queries;
};

struct PairStatistics {
  // Targets of LayerStatistics::sums. For source kv the producer's own K/V are the source itself.
  static constexpr std::size_t kConsumer = 0;
  static constexpr std::size_t kProducer = 1;  // source h only
  static constexpr std::size_t kInput = 2;     // GatherOptions::inputs only

  CodeSource source = CodeSource::kHidden;
  std::int64_t tokens = 0;  // rows of each layer
  std::vector<LayerStatistics> layers;

  // Of the source and the consumer's own [K | V].
  Moments Consumer(std::size_t layer) const;
  // Of the source and the consumer's normalised attention input; where inputs were gathered.
  Moments ConsumerInput(std::size_t layer) const;
  // Of the source and the producer's own [K | V].
  Moments Producer(std::size_t layer) const;
};

struct GatherOptions {
  CodeSource source = CodeSource::kHidden;
  bool inputs = false;  // the consumer's as well, for patched layers; source kHidden only
  std::int64_t sample_rows = 4096;
  std::int32_t max_tokens = 0;  // of a document
  std::int64_t tokens = 0;      // of all, about: no further document is begun; 0: no limit
  std::uint64_t seed = 0;
  CalibrationProgress progress;  // in tokens; may be null
};

// The models have layers, hidden, kv_heads and head_dim in common, and every token in their
// vocabularies. The first kSinkTokens rows of each document are left out. RESOURCE_EXHAUSTED as
// ModelProbe::Create; throws c10::Error when memory runs out.
absl::StatusOr<PairStatistics> GatherStatistics(const ProbedModel& producer,
                                                const ProbedModel& consumer,
                                                absl::Span<const Document* const> documents,
                                                const GatherOptions& options, Executor& executor);

}  // namespace baton
