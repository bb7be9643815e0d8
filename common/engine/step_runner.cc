#include "common/engine/step_runner.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace baton {
namespace {

// Rows of logits held at a time while a prompt is scored.
constexpr std::int32_t kScoreRows = 32;

// Reports each layer of the producer's slices as soon as its rows are in the pages.
class ReportHook final : public CaptureHook {
 public:
  ReportHook(std::span<const StepSlice> slices, const ModelConfig& config)
      : slices_(slices), hidden_(config.hidden), kv_dim_(config.kv_heads * config.head_dim) {}

  bool WantsInput(int layer) const override {
    return std::any_of(slices_.begin(), slices_.end(), [layer](const StepSlice& slice) {
      return ReportOf(slice.sequence->request, layer) == ReportedStates::kHidden;
    });
  }

  void OnKv(const LayerCapture& capture) override {
    std::int64_t row = 0;  // of the batch
    for (const StepSlice& slice : slices_) {
      const Sequence& sequence = *slice.sequence;
      const std::int32_t begin = std::max(slice.begin, sequence.reported);
      const auto report = ReportOf(sequence.request, capture.layer);
      if (report && begin < slice.end) {
        if (*report == ReportedStates::kPages) {
          sequence.listener->OnKvReady(
              MakeKvReady(sequence.kv.table, capture.layer, begin, slice.end));
        } else {
          sequence.listener->OnStates(
              CopyStates(capture, *report, row + begin - slice.begin, begin, slice.end));
        }
      }
      row += slice.end - slice.begin;
    }
  }

 private:
  // What of a layer goes to the request's listener; nothing: none of it.
  static std::optional<ReportedStates> ReportOf(const EngineRequest& request, int layer) {
    if (!request.prefill_only) return std::nullopt;
    if (request.report != ReportedStates::kAroundRun) return request.report;
    if (!request.run.contains(layer)) return ReportedStates::kPages;
    if (layer == request.run.begin) return ReportedStates::kHidden;
    return std::nullopt;
  }

  StatesReady CopyStates(const LayerCapture& capture, ReportedStates what, std::int64_t row,
                         std::int32_t begin, std::int32_t end) const {
    const bool hidden = what == ReportedStates::kHidden;
    StatesReady states{capture.layer, begin, end, hidden ? hidden_ + 1 : 2 * kv_dim_, {}};
    states.rows.reserve(static_cast<std::size_t>((end - begin) * states.width));
    const auto append = [&](const float* from, std::int64_t count) {
      states.rows.insert(states.rows.end(), from, from + count);
    };
    for (std::int64_t r = row; r < row + end - begin; ++r) {
      if (hidden) {
        append(capture.h_in + r * hidden_, hidden_);
        append(capture.rms + r, 1);
      } else {
        append(capture.k_pre_rope + r * capture.ld_kv, kv_dim_);
        append(capture.v + r * capture.ld_kv, kv_dim_);
      }
    }
    return states;
  }

  const std::span<const StepSlice> slices_;
  const std::int64_t hidden_;
  const std::int64_t kv_dim_;
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

std::vector<SliceResult> StepRunner::Run(const std::vector<StepSlice>& slices) {
  std::vector<SliceResult> results(slices.size());
  const auto is_run = [](const StepSlice& slice) { return slice.run; };
  auto next = std::find_if(slices.begin(), slices.end(), is_run);
  if (next != slices.begin()) RunAll({slices.begin(), next}, results);
  while (next != slices.end()) {
    const LayerRun layers = next->sequence->run->layers;
    const auto end = std::find_if(next, slices.end(), [&layers](const StepSlice& slice) {
      return slice.sequence->run->layers != layers;
    });
    RunSome({next, end});
    next = end;
  }
  return results;
}

void StepRunner::Gather(Slices slices) {
  tokens_.clear();
  positions_.clear();
  batch_.clear();
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
  }
}

void StepRunner::RunAll(Slices slices, std::vector<SliceResult>& results) {
  Gather(slices);
  const bool reports = std::any_of(slices.begin(), slices.end(), [](const StepSlice& slice) {
    return slice.sequence->request.prefill_only;
  });
  ReportHook hook(slices, model_->config());
  float* hidden = pass_.Embed(tokens_);
  pass_.RunLayers(0, static_cast<int>(model_->config().layers), hidden,
                  {.positions = positions_, .sequences = batch_}, reports ? &hook : nullptr);
  for (std::size_t i = 0; i < slices.size(); ++i) {
    if (slices[i].sequence->wants_scores()) {
      Score(slices[i], batch_[i].row_begin, hidden, results[i]);
    }
  }
  Sample(slices, hidden, results);
}

void StepRunner::RunSome(Slices slices) {
  Gather(slices);
  const std::int64_t width = model_->config().hidden;
  stream_.resize(positions_.size() * static_cast<std::size_t>(width));
  for (std::size_t i = 0; i < slices.size(); ++i) {
    const StepSlice& slice = slices[i];
    slice.sequence->run->stream->Read(slice.begin, slice.end - slice.begin,
                                      stream_.data() + batch_[i].row_begin * width);
  }
  const LayerRun layers = slices.front().sequence->run->layers;
  pass_.RunLayers(layers.begin, layers.end, stream_.data(),
                  {.positions = positions_, .sequences = batch_}, nullptr);
}

void StepRunner::Score(const StepSlice& slice, std::int32_t row_begin, const float* hidden,
                       SliceResult& result) {
  const Sequence& sequence = *slice.sequence;
  const Sequence::TokenRange targets = sequence.ScoredBy(slice.begin, slice.end);
  const auto vocab = static_cast<std::size_t>(model_->config().vocab);
  const int top = sequence.request.sampling.top_logprobs;
  result.prompt.resize(static_cast<std::size_t>(targets.end - targets.begin));
  std::vector<std::int32_t> rows;
  for (std::int32_t begin = targets.begin; begin < targets.end; begin += kScoreRows) {
    const std::int32_t end = std::min(targets.end, begin + kScoreRows);
    rows.resize(static_cast<std::size_t>(end - begin));
    std::iota(rows.begin(), rows.end(), row_begin + begin - 1 - slice.begin);
    const float* logits = pass_.Logits(hidden, rows);
    std::vector<absl::Status> failed(rows.size());
    executor_.ParallelFor(end - begin, 1, [&](std::int64_t from, std::int64_t to) {
      thread_local SamplerScratch scratch;
      for (std::int64_t i = from; i < to; ++i) {
        const auto row = static_cast<std::size_t>(i);
        auto scores =
            ScoreToken({logits + row * vocab, vocab},
                       sequence.tokens[static_cast<std::size_t>(begin) + row], top, scratch);
        failed[row] = scores.status();
        if (!scores.ok()) continue;
        result.prompt[static_cast<std::size_t>(begin - targets.begin) + row] = *std::move(scores);
      }
    });
    for (absl::Status& status : failed) {
      if (!status.ok()) result.status = std::move(status);
    }
    if (!result.status.ok()) return;
  }
}

void StepRunner::Sample(Slices slices, const float* hidden, std::vector<SliceResult>& results) {
  std::vector<std::int32_t> rows;
  std::vector<std::size_t> sampling;  // indices of the slices that sample
  for (std::size_t i = 0; i < slices.size(); ++i) {
    if (!slices[i].samples || !results[i].status.ok()) continue;
    rows.push_back(batch_[i].row_end - 1);
    sampling.push_back(i);
  }
  if (rows.empty()) return;
  const float* logits = pass_.Logits(hidden, rows);
  const auto vocab = static_cast<std::size_t>(model_->config().vocab);
  executor_.ParallelFor(static_cast<std::int64_t>(rows.size()), 1,
                        [&](std::int64_t begin, std::int64_t end) {
                          // Kept by its thread: a decode step allocates no vocabulary's worth.
                          thread_local SamplerScratch scratch;
                          for (std::int64_t i = begin; i < end; ++i) {
                            const std::size_t index = sampling[static_cast<std::size_t>(i)];
                            const Sequence& sequence = *slices[index].sequence;
                            SampleRequest request;
                            request.logits = {logits + static_cast<std::size_t>(i) * vocab, vocab};
                            request.params = &sequence.request.sampling;
                            request.seed = sequence.seed;
                            request.index = static_cast<std::uint64_t>(sequence.generated());
                            request.history = &sequence.history;
                            if (sequence.generated() < sequence.request.stop.min_tokens) {
                              request.forbidden = sequence.end_tokens;
                            }
                            auto sampled = SampleToken(request, scratch);
                            results[index].status = sampled.status();
                            if (sampled.ok()) results[index].sampled = *std::move(sampled);
                          }
                        });
}

}  // namespace baton
