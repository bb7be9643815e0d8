#include "common/scd/calibrate/recomputed_way.h"

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/status_macros.h"

namespace baton {
namespace {

// stream[r] = hidden[r] * rms[r], the first `rows` of them.
void Unnormalise(const float* hidden, const float* rms, std::int64_t rows, std::int64_t width,
                 float* stream) {
  for (std::int64_t r = 0; r < rows; ++r) {
    std::transform(hidden + r * width, hidden + (r + 1) * width, stream + r * width,
                   [scale = rms[r]](float x) { return x * scale; });
  }
}

class Recomputing {
 public:
  Recomputing(const ProbedModel& consumer, LayerRun run, StreamSource source,
              std::unique_ptr<ModelProbe> probe, Executor& executor)
      : hidden_(consumer.model->config().hidden),
        run_(run),
        source_(std::move(source)),
        probe_(std::move(probe)),
        uncoded_(UncodedWay("", consumer, executor)) {}

  // Layers of the run in order. One layer may be asked for again: ways with seams share this one.
  void Bring(const ProducerRows& given, float* out) {
    if (given.layer == run_.begin) Begin(given);
    if (given.layer != ran_) states_ = &probe_->RunLayer(given.layer);
    ran_ = given.layer;
    ProducerRows own = given;  // rotated as what comes uncoded
    own.kv = states_->kv.data();
    uncoded_.decode(own, out);
  }

 private:
  void Begin(const ProducerRows& given) {
    stream_.resize(static_cast<std::size_t>(given.rows * hidden_));
    source_(given, stream_.data());
    const std::int64_t sinks = std::min<std::int64_t>(kSinkTokens, given.rows);
    probe_->Start({given.tokens, static_cast<std::size_t>(sinks)});
    for (int layer = 0; layer <= run_.begin; ++layer) states_ = &probe_->RunLayer(layer);
    Unnormalise(states_->hidden.data(), states_->rms.data(), sinks, hidden_, stream_.data());
    probe_->StartWith(stream_);
    ran_ = -1;
  }

  const std::int64_t hidden_;
  const LayerRun run_;
  const StreamSource source_;
  const std::unique_ptr<ModelProbe> probe_;
  const PrefixWay uncoded_;
  std::vector<float> stream_;
  int ran_ = -1;  // the layer that states_ are of
  const LayerStates* states_ = nullptr;
};

}  // namespace

StreamSource ProducerStream(std::int64_t hidden) {
  return [hidden](const ProducerRows& given, float* stream) {
    Unnormalise(given.hidden, given.rms, given.rows, hidden, stream);
  };
}

absl::StatusOr<PrefixWay> RecomputedWay(const PrefixWay& others, LayerRun run, StreamSource stream,
                                        const ProbedModel& consumer, std::int32_t max_tokens,
                                        Executor& executor) {
  if (run.empty()) return others;
  BATON_ASSIGN_OR_RETURN(auto probe, ModelProbe::Create(consumer, max_tokens, executor));
  const auto recomputing =
      std::make_shared<Recomputing>(consumer, run, std::move(stream), std::move(probe), executor);
  return PrefixWay{
      others.name,
      [run, others = others.decode, recomputing](const ProducerRows& given, float* out) {
        if (!run.contains(given.layer)) return others(given, out);
        recomputing->Bring(given, out);
      },
      others.seam};
}

}  // namespace baton
