// Runs one step: all rows of all sequences in one forward pass, then samples. Rows of runs, which
// go through some layers only, have passes of their own.
//
// Owned by the engine's thread; must run inside a ComputeGate turn.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "common/engine/sampler.h"
#include "common/engine/sequence.h"
#include "common/model/model.h"

namespace baton {

// Rows [begin, end) of one sequence in a step.
struct StepSlice {
  Sequence* sequence = nullptr;
  std::int32_t begin = 0;
  std::int32_t end = 0;
  bool sinks = false;    // into the sinks' own pages
  bool run = false;      // from the landed stream through the layers of Sequence::run
  bool samples = false;  // the last row gives the next token
};

// What a step gave for one slice.
struct SliceResult {
  absl::Status status;  // not ok: its request fails
  // Of the prompt tokens of Sequence::ScoredBy, as SampledToken::logprobs.
  std::vector<std::vector<TokenLogprob>> prompt;
  std::optional<SampledToken> sampled;
};

class StepRunner {
 public:
  StepRunner(std::shared_ptr<const Model> model, const AdapterSet* adapters, Executor& executor);

  // One result per slice, in order; those of runs come last. Rows are in the tables afterwards;
  // layers of prefill_only slices were reported to their listeners as they were appended.
  std::vector<SliceResult> Run(const std::vector<StepSlice>& slices);

 private:
  using Slices = std::span<const StepSlice>;

  void RunAll(Slices slices, std::vector<SliceResult>& results);
  // Of slices with the same layers.
  void RunSome(Slices slices);
  // Tokens, positions and batch of these slices.
  void Gather(Slices slices);
  void Sample(Slices slices, const float* hidden, std::vector<SliceResult>& results);
  // Log-probabilities of the prompt, some rows of logits at a time.
  void Score(const StepSlice& slice, std::int32_t row_begin, const float* hidden,
             SliceResult& result);

  const std::shared_ptr<const Model> model_;
  Executor& executor_;
  ForwardPass pass_;
  std::vector<std::int32_t> tokens_;
  std::vector<std::int32_t> positions_;
  std::vector<SequenceSlice> batch_;
  std::vector<float> stream_;  // rows of runs
};

// The pages of rows [begin, end) of one layer; `begin` is a multiple of 16.
KvReady MakeKvReady(const SequenceTable& table, int layer, std::int32_t begin, std::int32_t end);

}  // namespace baton
