#include "common/engine/step_runner.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace baton {
namespace {

// Reports each layer of the producer's slices as soon as its rows are in the pages.
class ReportHook final : public CaptureHook {
 public:
  explicit ReportHook(const std::vector<StepSlice>& slices) : slices_(slices) {}
  void OnKv(const LayerCapture& capture) override {
    for (const StepSlice& slice : slices_) {
      const Sequence& sequence = *slice.sequence;
      const std::int32_t begin = std::max(slice.begin, sequence.reported);
      if (!sequence.request.prefill_only || begin >= slice.end) continue;
      sequence.listener->OnKvReady(MakeKvReady(sequence.kv.table, capture.layer, begin, slice.end));
    }
  }

 private:
  const std::vector<StepSlice>& slices_;
};

}  // namespace

KvReady MakeKvReady(const SequenceTable& table, int layer, std::int32_t begin, std::int32_t end) {
  KvReady ready;
  ready.layer = layer;
  ready.begin = begin;
  ready.end = end;
  for (int head = 0; head < table.kv_heads(); ++head) {
    const auto& refs = table.refs(layer, head);
    ready.pages.emplace_back(refs.begin() + begin / kPageRows,
                             refs.begin() + (end + kPageRows - 1) / kPageRows);
  }
  return ready;
}

StepRunner::StepRunner(std::shared_ptr<const Model> model, const AdapterSet* adapters,
                       Executor& executor)
    : model_(std::move(model)), executor_(executor), pass_(model_, adapters, executor) {}

std::vector<absl::StatusOr<SampledToken>> StepRunner::Run(const std::vector<StepSlice>& slices) {
  tokens_.clear();
  positions_.clear();
  batch_.clear();
  bool reports = false;
  for (const StepSlice& slice : slices) {
    Sequence& sequence = *slice.sequence;
    const auto row_begin = static_cast<std::int32_t>(tokens_.size());
    tokens_.insert(tokens_.end(), sequence.tokens.begin() + slice.begin,
                   sequence.tokens.begin() + slice.end);
    for (std::int32_t i = slice.begin; i < slice.end; ++i) positions_.push_back(i);
    KvRowsOwner& rows = slice.sinks ? *sequence.landing->sinks : sequence.kv;
    batch_.push_back({.row_begin = row_begin,
                      .row_end = static_cast<std::int32_t>(tokens_.size()),
                      .view = &rows.view,
                      .adapter = sequence.request.adapter});
    reports |= sequence.request.prefill_only;
  }
  ReportHook hook(slices);
  float* hidden = pass_.Embed(tokens_);
  pass_.RunLayers(0, static_cast<int>(model_->config().layers), hidden,
                  {.positions = positions_, .sequences = batch_}, reports ? &hook : nullptr);
  return Sample(slices, hidden);
}

std::vector<absl::StatusOr<SampledToken>> StepRunner::Sample(const std::vector<StepSlice>& slices,
                                                             const float* hidden) {
  std::vector<std::int32_t> rows;
  std::vector<const Sequence*> sequences;
  for (std::size_t i = 0; i < slices.size(); ++i) {
    if (!slices[i].samples) continue;
    rows.push_back(batch_[i].row_end - 1);
    sequences.push_back(slices[i].sequence);
  }
  std::vector<absl::StatusOr<SampledToken>> results(rows.size(), SampledToken());
  if (rows.empty()) return results;
  const float* logits = pass_.Logits(hidden, rows);
  const auto vocab = static_cast<std::size_t>(model_->config().vocab);
  executor_.ParallelFor(static_cast<std::int64_t>(rows.size()), 1,
                        [&](std::int64_t begin, std::int64_t end) {
                          // Kept by its thread: a decode step allocates no vocabulary's worth.
                          thread_local SamplerScratch scratch;
                          for (std::int64_t i = begin; i < end; ++i) {
                            const Sequence& sequence = *sequences[static_cast<std::size_t>(i)];
                            SampleRequest request;
                            request.logits = {logits + static_cast<std::size_t>(i) * vocab, vocab};
                            request.params = &sequence.request.sampling;
                            request.seed = sequence.seed;
                            request.index = static_cast<std::uint64_t>(sequence.generated());
                            request.history = &sequence.history;
                            if (sequence.generated() < sequence.request.stop.min_tokens) {
                              request.forbidden = sequence.end_tokens;
                            }
                            results[static_cast<std::size_t>(i)] = SampleToken(request, scratch);
                          }
                        });
  return results;
}

}  // namespace baton
