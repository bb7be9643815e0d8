// Sends one transfer: each layer's K/V, its codes or the stream that enters it leave as the engine
// reports them.
//
// It is the engine's listener for a prefill-only request. Frames are hashed and described on a
// worker, at most a window of them is with the transport, the rest wait here and are dropped when
// the transfer ends early. Pages are held until the transport lets go of them.
//
// Thread-safe. Callbacks run without the lock: on_admitted on the engine's thread, on_end once, on
// any thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "common/base/mutex.h"
#include "common/engine/engine.h"
#include "common/engine/request.h"
#include "common/node/worker_pool.h"
#include "common/scd/coding.h"
#include "common/transport/transport.h"
#include "common/wire/frame.h"
#include "kernels/kv_page.h"
#include "prefill_node/block_coder.h"
#include "prefill_node/frame_plan.h"

namespace baton {

struct TransferParams {
  std::string request_id;
  std::uint64_t transfer_id = 0;
  std::uint32_t generation = 0;
  FrameSecret secret{};
  KvPageLayout page_layout;
  Coding coding = Coding::kRaw;
  std::int32_t first_token = 0;  // rows before it are of no use to the receiver
  std::int32_t prefix_tokens = 0;
  std::int64_t frame_bytes = 4 << 20;
  int window = 8;
  std::shared_ptr<BlockCoder> coder;  // for codes; else null
};

struct TransferSummary {
  Coding coding = Coding::kRaw;
  double queue_s = 0;       // submit to admission
  double prefill_s = 0;     // admission to the end of the forward, by the clock
  double send_s = 0;        // first frame submitted to last completion
  double busy_s = 0;        // of it, with a frame under way
  std::uint64_t bytes = 0;  // payload
  std::uint32_t frames = 0;
  std::uint32_t computed_tokens = 0;
  std::string lane;
};

struct TransferCallbacks {
  std::function<void(const Admission&)> on_admitted;
  std::function<void(const absl::Status&, const TransferSummary&)> on_end;
};

class CodeSender final : public RequestListener, public std::enable_shared_from_this<CodeSender> {
 public:
  CodeSender(TransferParams params, Engine& engine, std::shared_ptr<Peer> peer,
             std::shared_ptr<WorkerPool> workers, TransferCallbacks callbacks);

  // The engine's handle, known only after Submit; aborts at once what has ended meanwhile.
  void SetHandle(RequestHandle handle) EXCLUDES(mu_);
  // Codes only, at most once: sends what the store has.
  void SendStored() EXCLUDES(mu_);
  // Nothing has to be computed: the transfer ends when what was stored is sent.
  void FinishWithoutEngine() EXCLUDES(mu_);
  // Ends the transfer: the engine's work is aborted, frames that wait are dropped.
  void Abort(const absl::Status& why) EXCLUDES(mu_);
  bool ended() const EXCLUDES(mu_);
  // Frames handed over so far.
  std::uint32_t frames_sent() const EXCLUDES(mu_);

  void OnAdmitted(const Admission& admission) override;
  void OnKvReady(KvReady ready) override EXCLUDES(mu_);
  void OnStates(StatesReady states) override EXCLUDES(mu_);
  void OnFinished(const FinishInfo& info) override EXCLUDES(mu_);

 private:
  struct Frame {
    std::string head;
    std::vector<ConstSpan> payload;
    std::shared_ptr<const void> owner;
    std::uint64_t bytes = 0;
  };

  // What can be coded now, with what waited for it; the rest waits. Empty: nothing can.
  KvReady WholeGroups(KvReady ready);
  // Runs `encode` on a worker, unless the transfer has ended by then; what fails ends it.
  void PostEncoding(std::function<absl::Status()> encode) EXCLUDES(mu_);
  void Encode(const std::function<absl::Status()>& encode) EXCLUDES(mu_);
  absl::Status EncodeFrames(const KvReady& ready) EXCLUDES(mu_);
  absl::Status EncodeStream(const StatesReady& states) EXCLUDES(mu_);
  absl::Status EncodeCodes(const StatesReady& whole) EXCLUDES(mu_);
  absl::Status EnqueueCodes(int layer, std::int32_t first_block,
                            std::span<const std::shared_ptr<const BlockCodes>> blocks)
      EXCLUDES(mu_);
  absl::Status Enqueue(FramePlan plan) EXCLUDES(mu_);
  void Pump() EXCLUDES(mu_);
  void OnSent(std::uint64_t bytes, const absl::Status& status) EXCLUDES(mu_);
  void EndIfComplete() EXCLUDES(mu_);
  void End(const absl::Status& status, bool abort_engine) EXCLUDES(mu_);

  const TransferParams params_;
  Engine& engine_;
  const std::shared_ptr<Peer> peer_;
  const std::shared_ptr<WorkerPool> workers_;

  // Engine's thread only. Pages without the partner of their group: [layer] → [kv_head].
  std::unordered_map<int, std::vector<PageRef>> odd_pages_;

  mutable Mutex mu_;
  TransferCallbacks callbacks_ GUARDED_BY(mu_);
  RequestHandle handle_ GUARDED_BY(mu_) = 0;
  bool has_handle_ GUARDED_BY(mu_) = false;
  bool engine_done_ GUARDED_BY(mu_) = false;
  bool ended_ GUARDED_BY(mu_) = false;
  bool pumping_ GUARDED_BY(mu_) = false;
  int encoding_ GUARDED_BY(mu_) = 0;  // reports on the way to a worker or in it
  int in_flight_ GUARDED_BY(mu_) = 0;
  std::uint32_t next_sequence_ GUARDED_BY(mu_) = 0;
  std::deque<Frame> waiting_ GUARDED_BY(mu_);
  std::chrono::steady_clock::time_point first_submit_ GUARDED_BY(mu_);
  std::chrono::steady_clock::time_point last_done_ GUARDED_BY(mu_);
  std::chrono::steady_clock::time_point busy_since_ GUARDED_BY(mu_);
  TransferSummary summary_ GUARDED_BY(mu_);
};

}  // namespace baton
