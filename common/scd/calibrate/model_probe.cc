#include "common/scd/calibrate/model_probe.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/base/status_macros.h"
#include "common/model/model_weights.h"
#include "common/model/single_sequence.h"
#include "kernels/elementwise.h"

namespace baton {

// Sees inputs and K/V as a hook, and queries as the view that attention asks.
class ModelProbe::Watch final : public CaptureHook, public KvView {
 public:
  Watch(const ProbedModel& of, std::unique_ptr<SingleSequence> sequence, Executor& executor)
      : of_(of),
        sequence_(std::move(sequence)),
        pass_(of.model, of.adapters, executor),
        executor_(executor),
        backward_(of.model->weights().inv_freq) {
    for (float& f : backward_) f = -f;
  }

  void Start(absl::Span<const std::int32_t> tokens) {
    sequence_->Rewind();
    positions_.resize(tokens.size());
    std::iota(positions_.begin(), positions_.end(), 0);
    embedded_ = pass_.Embed({tokens.data(), tokens.size()});
  }

  void StartWith(absl::Span<const float> stream) {
    sequence_->Rewind();
    positions_.resize(stream.size() / static_cast<std::size_t>(of_.model->config().hidden));
    std::iota(positions_.begin(), positions_.end(), 0);
    given_.assign(stream.begin(), stream.end());
    embedded_ = given_.data();
  }

  const LayerStates& RunLayer(int layer) {
    const auto rows = static_cast<std::int32_t>(positions_.size());
    const std::int64_t d = of_.model->config().hidden;
    states_.energy.clear();
    states_.rms.clear();
    for (const float* row = embedded_; row != embedded_ + rows * d; row += d) {
      const float energy = std::inner_product(row, row + d, row, 0.0f);
      states_.energy.push_back(energy);
      states_.rms.push_back(
          std::sqrt(energy / static_cast<float>(d) + of_.model->weights().rms_eps));
    }
    const SequenceSlice slice{0, rows, this, of_.adapter};
    pass_.RunLayers(layer, layer + 1, embedded_,
                    {.positions = positions_, .sequences = {&slice, 1}}, this);
    return states_;
  }

  bool WantsInput(int) const override { return true; }
  void OnKv(const LayerCapture& capture) override {
    const ModelConfig& c = of_.model->config();
    const std::int64_t kv_dim = c.kv_heads * c.head_dim;
    states_.rows = capture.rows;
    states_.hidden.assign(capture.h_in, capture.h_in + capture.rows * c.hidden);
    states_.kv.resize(static_cast<std::size_t>(capture.rows * 2 * kv_dim));
    for (std::int64_t r = 0; r < capture.rows; ++r) {
      float* row = states_.kv.data() + r * 2 * kv_dim;
      std::copy_n(capture.k_pre_rope + r * capture.ld_kv, kv_dim, row);
      std::copy_n(capture.v + r * capture.ld_kv, kv_dim, row + kv_dim);
    }
  }

  const KvPageLayout& layout() const override { return sequence_->layout(); }
  void Append(int layer, const KvRows& rows) override { sequence_->view().Append(layer, rows); }
  const LayerSegments& Select(int layer, const QueryBlock& q) override {
    const ModelConfig& c = of_.model->config();
    const std::int64_t width = c.heads * c.head_dim;
    const auto rows = static_cast<std::int64_t>(q.positions.size());
    states_.queries.resize(static_cast<std::size_t>(rows * width));
    for (std::int64_t r = 0; r < rows; ++r) {
      std::copy_n(q.q + r * q.ldq, width, states_.queries.data() + r * width);
    }
    // Turned back by the same angles; a scaling of cosine and sine is taken out as well.
    const auto scale = static_cast<float>(1 / c.rope.attention_factor);
    Rope(states_.queries.data(), width, q.positions.data(), backward_.data(), scale,
         static_cast<int>(c.heads), static_cast<int>(c.head_dim), rows, executor_);
    return sequence_->view().Select(layer, q);
  }

 private:
  const ProbedModel of_;
  const std::unique_ptr<SingleSequence> sequence_;
  ForwardPass pass_;
  Executor& executor_;
  std::vector<float> backward_;  // [head_dim / 2] negative frequencies
  std::vector<std::int32_t> positions_;
  std::vector<float> given_;
  float* embedded_ = nullptr;  // given_, or the pass's until its next Embed
  LayerStates states_;
};

ModelProbe::ModelProbe(std::unique_ptr<Watch> watch) : watch_(std::move(watch)) {}
ModelProbe::~ModelProbe() = default;

absl::StatusOr<std::unique_ptr<ModelProbe>> ModelProbe::Create(const ProbedModel& model,
                                                               std::int32_t max_tokens,
                                                               Executor& executor) {
  BATON_ASSIGN_OR_RETURN(auto sequence,
                         SingleSequence::Create(model.model->config(), DType::kF32, max_tokens));
  return std::unique_ptr<ModelProbe>(
      new ModelProbe(std::make_unique<Watch>(model, std::move(sequence), executor)));
}

void ModelProbe::Start(absl::Span<const std::int32_t> tokens) { watch_->Start(tokens); }

void ModelProbe::StartWith(absl::Span<const float> stream) { watch_->StartWith(stream); }

const LayerStates& ModelProbe::RunLayer(int layer) { return watch_->RunLayer(layer); }

}  // namespace baton
