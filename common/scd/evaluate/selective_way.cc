#include "common/scd/evaluate/selective_way.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/model/model_weights.h"

namespace baton {
namespace {

constexpr double kHalfBytes = 2;

class Recomputing {
 public:
  Recomputing(const ProbedModel& consumer, LayerRun run, std::unique_ptr<ModelProbe> probe,
              PrefixWay uncoded)
      : consumer_(consumer), run_(run), probe_(std::move(probe)), uncoded_(std::move(uncoded)) {}

  void Bring(const ProducerRows& given, float* out) {
    if (given.layer < run_.begin || given.layer >= run_.end) {
      uncoded_.decode(given, out);
      return;
    }
    if (given.layer == run_.begin) Begin(given);
    const LayerStates& states = probe_->RunLayer(given.layer);
    ProducerRows own = given;  // rotated as what comes uncoded
    own.kv = states.kv.data();
    uncoded_.decode(own, out);
  }

 private:
  // The stream is the normalised input times the root of its mean square.
  void Begin(const ProducerRows& given) {
    const Model::Weights& w = consumer_.model->weights();
    const std::int64_t d = w.config.hidden;
    stream_.resize(static_cast<std::size_t>(given.rows * d));
    for (std::int64_t r = 0; r < given.rows; ++r) {
      const float rms = std::sqrt(given.energy[r] / static_cast<float>(d) + w.rms_eps);
      for (std::int64_t i = 0; i < d; ++i) stream_[r * d + i] = given.hidden[r * d + i] * rms;
    }
    probe_->StartWith(stream_);
  }

  const ProbedModel consumer_;
  const LayerRun run_;
  const std::unique_ptr<ModelProbe> probe_;
  const PrefixWay uncoded_;
  std::vector<float> stream_;
};

}  // namespace

absl::StatusOr<PrefixWay> SelectiveWay(const ProbedModel& consumer, LayerRun recomputed,
                                       std::int32_t max_tokens, Executor& executor) {
  BATON_ASSIGN_OR_RETURN(auto probe, ModelProbe::Create(consumer, max_tokens, executor));
  const auto way = std::make_shared<Recomputing>(consumer, recomputed, std::move(probe),
                                                 UncodedWay("", consumer, executor));
  return PrefixWay{Cat("selective:", recomputed.begin, "-", recomputed.end - 1),
                   [way](const ProducerRows& given, float* out) { way->Bring(given, out); }};
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
