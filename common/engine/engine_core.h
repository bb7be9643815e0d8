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
    std::vector<SliceResult> results;  // of each slice, in order
  };

  EngineCore(const EngineResources& resources, const EngineOptions& options);

  void Add(std::unique_ptr<Sequence> sequence);
  void Abort(RequestHandle handle, const absl::Status& reason);
  void AbortAll(const absl::Status& reason);
  void PublishPrefix(RequestHandle handle);
  void AbandonPrefix(RequestHandle handle);
  // Returns the pages really freed.
  std::int64_t EvictPages(std::int64_t pages) { return cache_.EvictPages(pages); }
  void ClearCache() { cache_.Clear(); }
  // Who this engine is when it asks the pool's others for pages.
  void set_reclaimer(const void* self) { reclaimer_ = self; }

  // Admits waiting sequences in order while pages and places last.
  void Admit();
  // Whether a step would do anything.
  bool HasWork() const;
  // The last step did nothing because another engine is about to give pages back.
  bool WaitsForPages() const { return stalled_; }
  bool HasWaiting() const { return !waiting_.empty(); }
  // Forward and sampling; inside the gate.
  StepOutcome Step();
  // Tokens to their listeners; outside the gate.
  void Deliver(StepOutcome outcome);

  std::int64_t TakeFinished() { return std::exchange(finished_, 0); }
  EngineStats GetStats();

 private:
  // Whether `sequence` would be among the max_running that compute.
  bool HasSeat(const Sequence& sequence) const;
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
  // After CanFree said no: another engine may give pages back soon, so nobody is pre-empted yet.
  bool WorthWaiting();
  // Frees cached pages if that is enough; false changes nothing.
  bool MakeFree(std::int64_t pages);
  // Pre-empts sequences of lower priority than `head` until `pages` can be had; false (nothing
  // changes) if all of them would not be enough.
  bool PreemptFor(const Sequence& head, std::int64_t pages);
  // The sequences that compute in the next step: the first max_running that are not parked.
  std::vector<Sequence*> Seated() const;
  void GrowDecoding();
  bool Grow(Sequence& sequence);
  Sequence* Victim();
  void Preempt(Sequence& sequence);
  void BackToWaiting(Sequence& sequence);
  std::vector<StepSlice> Plan();
  void Commit(const std::vector<StepSlice>& slices, double seconds);
  void TakeOverIfComplete(Sequence& sequence);
  void StoreBlocks(Sequence& sequence);
  void Touch(const Sequence& sequence);
  void DeliverScores(Sequence& sequence, const std::vector<std::vector<TokenLogprob>>& scores);
  void DeliverToken(Sequence& sequence, const SampledToken& sampled);
  std::vector<TokenLogprobEntry> WithBytes(const std::vector<TokenLogprob>& tokens) const;
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
  bool stalled_ = false;
  bool others_may_yield_ = false;  // as of the last time they were asked
  double short_since_ = 0;         // when pages of others were first waited for; 0: not waiting
};

}  // namespace baton
