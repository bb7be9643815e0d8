// One prefix as several ways bring it to a consumer, each in a KV cache of its own.
//
//   BATON_ASSIGN_OR_RETURN(auto handed, HandOver::Create(producer, consumer, ways, n, executor));
//   handed->Take(prefix);      // cache 0: the consumer's own prefill
//   const float* h = handed->Run(2, tokens, prefix.size());   // over what ways[1] brought
//   handed->Rewind(2, prefix.size());                         // and forget `tokens` again
//
// The first kSinkTokens rows are the consumer's own in every cache. One thread at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/model/model.h"
#include "common/model/single_sequence.h"
#include "common/scd/calibrate/model_probe.h"
#include "common/scd/calibrate/prefix_way.h"
#include "kernels/executor.h"

namespace baton {

class HandOver {
 public:
  // `ways`, like `executor`, must outlive it. Texts of at most `max_tokens`. RESOURCE_EXHAUSTED
  // when the pages cannot be had.
  static absl::StatusOr<std::unique_ptr<HandOver>> Create(const ProbedModel& producer,
                                                          const ProbedModel& consumer,
                                                          absl::Span<const PrefixWay> ways,
                                                          std::int32_t max_tokens,
                                                          Executor& executor);

  // The consumer's own and those of the ways.
  std::size_t caches() const { return sequences_.size(); }
  SingleSequence& cache(std::size_t i) { return *sequences_[i]; }
  const ProbedModel& consumer() const { return consumer_; }
  ForwardPass& pass() { return pass_; }
  Executor& executor() { return executor_; }

  // More than kSinkTokens tokens. What was in the caches is forgotten.
  void Take(absl::Span<const std::int32_t> prefix);

  // Called with hidden [tokens, hidden] after each layer.
  using LayerWatch = std::function<void(int layer, const float* hidden)>;
  // The consumer runs `tokens`, from position `first`, over a cache that has the rows before them.
  // Hidden states after the last layer [tokens, hidden], the pass's until it runs again.
  float* Run(std::size_t cache, absl::Span<const std::int32_t> tokens, std::int32_t first,
             const LayerWatch& watch = nullptr);
  // One token for each of `caches`, at the position given, in one batch. As Run: [caches, hidden].
  float* Step(absl::Span<const std::size_t> caches, absl::Span<const std::int32_t> tokens,
              absl::Span<const std::int32_t> positions);
  // Forgets the rows after the first `rows`.
  void Rewind(std::size_t cache, std::int32_t rows);

 private:
  HandOver(const ProbedModel& consumer, std::unique_ptr<ModelProbe> producer,
           std::vector<std::unique_ptr<SingleSequence>> sequences, absl::Span<const PrefixWay> ways,
           Executor& executor);
  const ModelConfig& config() const { return consumer_.model->config(); }
  // Rows that a way leaves to the consumer; the first are its own in any case.
  std::size_t Seam(std::size_t way, std::int64_t prefix) const;

  const ProbedModel consumer_;
  const std::unique_ptr<ModelProbe> producer_;
  const std::vector<std::unique_ptr<SingleSequence>> sequences_;
  const absl::Span<const PrefixWay> ways_;
  ForwardPass pass_;
  Executor& executor_;
};

}  // namespace baton
