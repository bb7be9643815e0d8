#include "common/scd/calibrate/hand_over.h"

#include <algorithm>
#include <numeric>
#include <span>
#include <utility>

#include "common/base/status_macros.h"
#include "common/scd/calibrate/statistics.h"

namespace baton {

HandOver::HandOver(const ProbedModel& consumer, std::unique_ptr<ModelProbe> producer,
                   std::vector<std::unique_ptr<SingleSequence>> sequences,
                   absl::Span<const PrefixWay> ways, Executor& executor)
    : consumer_(consumer),
      producer_(std::move(producer)),
      sequences_(std::move(sequences)),
      ways_(ways),
      pass_(consumer.model, consumer.adapters, executor),
      executor_(executor) {}

absl::StatusOr<std::unique_ptr<HandOver>> HandOver::Create(const ProbedModel& producer,
                                                           const ProbedModel& consumer,
                                                           absl::Span<const PrefixWay> ways,
                                                           std::int32_t max_tokens,
                                                           Executor& executor) {
  BATON_ASSIGN_OR_RETURN(auto probe, ModelProbe::Create(producer, max_tokens, executor));
  std::vector<std::unique_ptr<SingleSequence>> sequences;
  for (std::size_t w = 0; w <= ways.size(); ++w) {
    BATON_ASSIGN_OR_RETURN(
        auto sequence, SingleSequence::Create(consumer.model->config(), DType::kF32, max_tokens));
    sequences.push_back(std::move(sequence));
  }
  return std::unique_ptr<HandOver>(
      new HandOver(consumer, std::move(probe), std::move(sequences), ways, executor));
}

void HandOver::Take(absl::Span<const std::int32_t> prefix) {
  for (const auto& sequence : sequences_) sequence->Rewind();
  Run(0, prefix, 0);
  for (std::size_t i = 1; i < sequences_.size(); ++i) Run(i, prefix.subspan(0, kSinkTokens), 0);
  const auto rows = static_cast<std::int64_t>(prefix.size());
  const std::int64_t kv_dim = config().kv_heads * config().head_dim;
  std::vector<std::int32_t> positions(static_cast<std::size_t>(rows - kSinkTokens));
  std::iota(positions.begin(), positions.end(), kSinkTokens);
  std::vector<float> decoded(static_cast<std::size_t>(rows * 2 * kv_dim));
  const float* first = decoded.data() + kSinkTokens * 2 * kv_dim;
  producer_->Start(prefix);
  for (int layer = 0; layer < static_cast<int>(config().layers); ++layer) {
    const LayerStates& states = producer_->RunLayer(layer);
    const ProducerRows given{.layer = layer,
                             .rows = rows,
                             .tokens = prefix.data(),
                             .hidden = states.hidden.data(),
                             .rms = states.rms.data(),
                             .kv = states.kv.data()};
    for (std::size_t w = 0; w < ways_.size(); ++w) {
      ways_[w].decode(given, decoded.data());
      sequences_[w + 1]->view().Append(
          layer, {.k = first,
                  .ldk = 2 * kv_dim,
                  .v = first + kv_dim,
                  .ldv = 2 * kv_dim,
                  .positions = std::span(positions).first(positions.size() - Seam(w, rows))});
    }
  }
  for (std::size_t w = 0; w < ways_.size(); ++w) {
    const std::size_t begin = prefix.size() - Seam(w, rows);
    if (begin == prefix.size()) continue;
    Run(w + 1, prefix.subspan(begin), static_cast<std::int32_t>(begin));
  }
}

std::size_t HandOver::Seam(std::size_t way, std::int64_t prefix) const {
  return static_cast<std::size_t>(
      std::clamp<std::int64_t>(ways_[way].seam, 0, prefix - kSinkTokens));
}

float* HandOver::Run(std::size_t cache, absl::Span<const std::int32_t> tokens, std::int32_t first,
                     const LayerWatch& watch) {
  std::vector<std::int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), first);
  const SequenceSlice slice{0, static_cast<std::int32_t>(tokens.size()), &sequences_[cache]->view(),
                            consumer_.adapter};
  const ForwardBatch batch{.positions = positions, .sequences = {&slice, 1}};
  float* h = pass_.Embed({tokens.data(), tokens.size()});
  const auto layers = static_cast<int>(config().layers);
  if (!watch) {
    pass_.RunLayers(0, layers, h, batch, nullptr);
    return h;
  }
  for (int layer = 0; layer < layers; ++layer) {
    pass_.RunLayers(layer, layer + 1, h, batch, nullptr);
    watch(layer, h);
  }
  return h;
}

float* HandOver::Step(absl::Span<const std::size_t> caches, absl::Span<const std::int32_t> tokens,
                      absl::Span<const std::int32_t> positions) {
  std::vector<SequenceSlice> slices;
  for (std::size_t i = 0; i < caches.size(); ++i) {
    const auto row = static_cast<std::int32_t>(i);
    slices.push_back({row, row + 1, &sequences_[caches[i]]->view(), consumer_.adapter});
  }
  float* h = pass_.Embed({tokens.data(), tokens.size()});
  pass_.RunLayers(0, static_cast<int>(config().layers), h,
                  {.positions = {positions.data(), positions.size()}, .sequences = slices},
                  nullptr);
  return h;
}

void HandOver::Rewind(std::size_t cache, std::int32_t rows) {
  SequenceTable& table = sequences_[cache]->table();
  for (int layer = 0; layer < table.layers(); ++layer) {
    for (int head = 0; head < table.kv_heads(); ++head) table.set_num_rows(layer, head, rows);
  }
}

}  // namespace baton
