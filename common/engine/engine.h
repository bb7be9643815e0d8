// Continuous batching over one set of base weights and any number of adapters.
//
//   BATON_ASSIGN_OR_RETURN(auto engine, Engine::Create(resources, options));
//   BATON_ASSIGN_OR_RETURN(RequestHandle h, engine->Submit(request, listener));
//
// One thread owns the model's execution state; every public function is thread-safe and only
// enqueues. A step runs the running sequences' next tokens plus at most one token budget of
// prompt chunks. FCFS within a priority; when pages run out, cached blocks are evicted first, then
// the youngest sequence of the lowest priority is pre-empted and later recomputed (its sampler
// continues exactly: random numbers depend on (seed, token index) only).
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/compute_gate.h"
#include "common/engine/request.h"
#include "common/kv_cache/page_pool.h"
#include "common/metrics/metrics.h"
#include "common/model/model.h"
#include "common/tokenizer/tokenizer.h"

namespace baton {

struct EngineOptions {
  std::string name;                 // model name in logs and metrics
  std::int32_t max_context = 0;     // tokens, prompt + completion; 0: the model's
  std::int32_t step_tokens = 512;   // budget of prompt rows per step
  std::int32_t max_running = 64;    // sequences in a step; those that wait for a prefix not counted
  std::int32_t max_waiting = 1024;  // queue bound: RESOURCE_EXHAUSTED beyond
  bool prefix_cache = true;
};

struct EngineResources {
  std::shared_ptr<const Model> model;
  std::shared_ptr<const AdapterSet> adapters;  // may be null
  std::shared_ptr<const Tokenizer> tokenizer;  // may be null for a producer
  std::shared_ptr<PagePool> pool;              // may be shared by engines of one layout
  ComputeGate* gate = nullptr;                 // required: one computes at a time
  Executor* executor = nullptr;                // required
  MetricRegistry* metrics = nullptr;           // may be null
};

struct EngineStats {
  std::int32_t running = 0;  // admitted, those that wait for their prefix included
  std::int32_t waiting = 0;
  std::int64_t cached_blocks = 0;
  std::int64_t preemptions = 0;
  PagePool::Stats pool;
};

class Engine {
 public:
  static absl::StatusOr<std::unique_ptr<Engine>> Create(EngineResources resources,
                                                        EngineOptions options);
  // Aborts what runs (CANCELLED), joins the thread.
  ~Engine();

  // INVALID_ARGUMENT: names the field, the value and the limit (prompt empty, token id outside
  // the vocabulary, prompt + max_tokens over the context, more pages than the pool has ...).
  // RESOURCE_EXHAUSTED: the queue is full. UNAVAILABLE: draining.
  absl::StatusOr<RequestHandle> Submit(EngineRequest request,
                                       std::shared_ptr<RequestListener> listener);
  // The listener gets OnFinished(status) within one step. Unknown handles are ignored.
  void Abort(RequestHandle handle, absl::Status reason);
  // All rows of the landing are written; the sequence goes on behind it.
  void PublishPrefix(RequestHandle handle);
  // The prefix will not arrive: it is computed here. A writer may still hold the landing; its pages
  // are not used again before it lets go.
  void AbandonPrefix(RequestHandle handle);

  // No new requests; true when all that ran has finished before `timeout`.
  bool Drain(std::chrono::nanoseconds timeout);
  // Drops cached blocks nobody uses; done when the engine's thread gets to it.
  void ClearPrefixCache();
  EngineStats GetStats() const;
  const EngineOptions& options() const;
  const Model& model() const;

 private:
  class Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace baton
