// What the engine's thread does: admission, steps, delivery. No locks; one thread only.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/engine/engine.h"
#include "common/engine/engine_metrics.h"
#include "common/engine/sequence.h"
#include "common/engine/step_runner.h"
#include "common/kv_cache/prefix_cache.h"

namespace baton {

class EngineCore {
 public:
  // A step that ran and whose tokens are still to be delivered.
  struct StepOutcome {
    absl::Status status;  // not ok: nothing ran, the slices' requests fail
    std::vector<StepSlice> slices;
    std::vector<absl::StatusOr<SampledToken>> sampled;  // of the slices that sample, in order
  };

  EngineCore(const EngineResources& resources, const EngineOptions& options);

  void Add(std::unique_ptr<Sequence> sequence);
  void Abort(RequestHandle handle, const absl::Status& reason);
  void AbortAll(const absl::Status& reason);
  void PublishPrefix(RequestHandle handle);
  void AbandonPrefix(RequestHandle handle);
  void EvictPages(std::int64_t pages) { cache_.EvictPages(pages); }
  void ClearCache() { cache_.Clear(); }
  // Who this engine is when it asks the pool's others for pages.
  void set_reclaimer(const void* self) { reclaimer_ = self; }

  // Admits waiting sequences in order while pages and places last.
  void Admit();
  // Whether a step would do anything.
  bool HasWork() const;
  bool HasWaiting() const { return !waiting_.empty(); }
  // Forward and sampling; inside the gate.
  StepOutcome Step();
  // Tokens to their listeners; outside the gate.
  void Deliver(StepOutcome outcome);

  std::int64_t TakeFinished() { return std::exchange(finished_, 0); }
  EngineStats GetStats();

 private:
  bool TryAdmit(Sequence& sequence);
  std::int64_t Headroom() const;
  // Cached blocks that `sequence` may start from; valid until the cache changes.
  std::vector<PrefixCache::CachedBlock> FindCached(const Sequence& sequence) const;
  static void AttachCached(Sequence& sequence, const std::vector<PrefixCache::CachedBlock>& found);
  void CountFirstAdmission(Sequence& sequence, std::int32_t cached);
  std::shared_ptr<PrefixLanding> OpenLandingFor(Sequence& sequence, std::int32_t cached);
  void ReportCached(Sequence& sequence);
  // Whether `pages` are free or would be without unused cached blocks. If not, other engines are
  // asked for theirs.
  bool CanFree(std::int64_t pages);
  // Frees cached pages if that is enough; false changes nothing.
  bool MakeFree(std::int64_t pages);
  void GrowDecoding();
  bool Grow(Sequence& sequence);
  Sequence& Victim();
  void Preempt(Sequence& sequence);
  void BackToWaiting(Sequence& sequence);
  std::vector<StepSlice> Plan();
  void Commit(const std::vector<StepSlice>& slices, double seconds);
  void TakeOverIfComplete(Sequence& sequence);
  void StoreBlocks(Sequence& sequence);
  void Touch(const Sequence& sequence);
  void DeliverToken(Sequence& sequence, const SampledToken& sampled);
  void Fail(Sequence& sequence, absl::Status status);
  void Finish(Sequence& sequence, FinishInfo info);

  const EngineResources resources_;
  const EngineOptions options_;
  const int layers_;
  const int kv_heads_;
  const void* reclaimer_ = nullptr;
  EngineMetrics metrics_;
  StepRunner runner_;
  PrefixCache cache_;
  std::unordered_map<RequestHandle, std::unique_ptr<Sequence>> sequences_;
  std::map<ServiceKey, Sequence*> waiting_;
  std::map<ServiceKey, Sequence*> running_;  // admitted, parked ones included
  std::int64_t finished_ = 0;
  std::int64_t preemptions_ = 0;
};

}  // namespace baton
