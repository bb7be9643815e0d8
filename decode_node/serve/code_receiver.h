// Takes frames from the transport and writes their rows into reserved pages.
//
//   auto transfer = receiver.Register({...secret, landing...}, {.on_complete = ...});
//   ... open Prefill.Start; frames arrive ...
//   receiver.Close(transfer);    // afterwards nothing writes into the landing
//
// A frame is looked up by transfer id before a byte lands, then checked: generation, MAC, layer,
// range, chunk table, length, duplicate. Its payload lands in a buffer of its own, which lives
// until the transport's fence, so that a late writer can never touch a page. A worker checks the
// hash and copies the rows. What fails a check is dropped and counted by reason. If it was signed
// for this transfer and is no duplicate, the transfer is told: it would wait for it in vain.
//
// Thread-safe. Callbacks run on workers or the transport's thread, without locks of this room.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "common/base/mutex.h"
#include "common/engine/request.h"
#include "common/metrics/metrics.h"
#include "common/node/worker_pool.h"
#include "common/scd/coding.h"
#include "common/scd/decoder.h"
#include "common/transport/transport.h"
#include "common/weights/layer_run.h"
#include "common/wire/frame.h"
#include "decode_node/serve/frame_buffers.h"
#include "kernels/kv_page.h"

namespace baton {

struct IncomingSpec {
  std::uint64_t transfer_id = 0;
  std::uint32_t generation = 0;
  FrameSecret secret{};
  KvPageLayout page_layout;
  Coding coding = Coding::kRaw;  // what was asked for; rows as they are come with any
  std::shared_ptr<PrefixLanding> landing;
  // kReuse only: what codes are decoded with, and how much of them comes.
  std::shared_ptr<const CodeDecoder> decoder;
  CodeCut cut;
};

struct IncomingCallbacks {
  std::function<void()> on_rows;               // a frame's rows are in; maybe the last ones
  std::function<void(absl::Status)> on_error;  // a frame of this transfer is lost
};

struct IncomingProgress {
  bool complete = false;     // every row of every layer is in
  std::uint32_t frames = 0;  // imported
  std::uint64_t bytes = 0;
  double import_s = 0;                               // checking and copying, summed
  std::chrono::steady_clock::time_point last_frame;  // arrival of the latest frame's header
};

// One generation of one transfer.
class IncomingTransfer {
 public:
  IncomingTransfer(const IncomingSpec& spec, IncomingCallbacks callbacks);

  const IncomingSpec& spec() const { return spec_; }
  IncomingProgress progress() const EXCLUDES(mu_);

 private:
  friend class CodeReceiver;
  friend class FrameLanding;

  // What a head must say to belong here; the reason of the refusal is the message. Takes no lock
  // that is held during a copy.
  absl::Status CheckHead(const FrameHead& head, std::uint64_t payload_bytes) const;
  // False: this sequence number has been seen.
  bool Claim(std::uint32_t sequence) EXCLUDES(claim_mu_);
  // Copies rows, beside other frames; false after Close. A page that an earlier frame has taken is
  // left as it is. `start` is when work on the frame began.
  bool Import(const FrameHead& head, const std::uint8_t* payload,
              std::chrono::steady_clock::time_point start) EXCLUDES(mu_);
  // Whether frames of this kind are expected, of any layer and of this one.
  bool Expects(FrameKind kind) const;
  bool ExpectsOf(FrameKind kind, int layer) const;
  absl::Status CheckChunks(const FrameHead& head) const;
  // Rows of the stream in the frame.
  void WriteStream(const PrefixLanding& landing, const FrameHead& head, const std::uint8_t* payload,
                   const std::vector<std::int32_t>& pages) const;
  // The same, of blocks whose codes are in the frame.
  void DecodeStream(const PrefixLanding& landing, const FrameHead& head,
                    const std::uint8_t* payload, const std::vector<std::int32_t>& pages) const;
  // Pages of blocks whose codes are in the frame.
  void DecodePages(const PrefixLanding& landing, const FrameHead& head, const std::uint8_t* payload,
                   const std::vector<std::int32_t>& pages) const;
  void WriteBlockPage(const PrefixLanding& landing, std::size_t layer, std::int32_t page,
                      const float* kv, std::vector<std::byte>& scratch) const;
  void CopyPage(const PrefixLanding& landing, const FrameHead& head, const std::uint8_t* payload,
                std::uint32_t kv_head, std::int32_t page, std::vector<std::byte>& scratch) const;
  // Waits for copies under way.
  void Close() EXCLUDES(mu_);

  const IncomingSpec spec_;  // without the landing
  const IncomingCallbacks callbacks_;
  const std::int32_t first_row_, end_row_, layers_, kv_heads_;  // of the landing
  const LayerRun run_;                                          // of the landing
  const std::int64_t hidden_;                                   // of its stream; 0: it has none
  std::atomic<std::int64_t> last_frame_ns_;

  Mutex claim_mu_;  // the transport's thread must not wait for a copy
  std::unordered_set<std::uint32_t> claimed_ GUARDED_BY(claim_mu_);

  mutable Mutex mu_;  // not held while rows are copied
  CondVar idle_;
  bool closed_ GUARDED_BY(mu_) = false;
  int importing_ GUARDED_BY(mu_) = 0;  // copies under way: what Close waits for
  std::shared_ptr<PrefixLanding> landing_ GUARDED_BY(mu_);
  // [layer][page - first_page]; for a run's first layer the same rows of the stream.
  std::vector<std::vector<bool>> taken_ GUARDED_BY(mu_);
  std::int64_t pages_missing_ GUARDED_BY(mu_) = 0;  // over all layers that something comes for
  IncomingProgress progress_ GUARDED_BY(mu_);
};

class CodeReceiver final : public Receiver {
 public:
  // Frames that would take the buffers above `max_buffered_bytes` are dropped.
  CodeReceiver(std::shared_ptr<WorkerPool> workers, MetricRegistry& metrics,
               std::int64_t max_buffered_bytes);

  // The id must not be registered already with this or a later generation.
  std::shared_ptr<IncomingTransfer> Register(const IncomingSpec& spec, IncomingCallbacks callbacks)
      EXCLUDES(mu_);
  // On return no row is written any more and the landing's pages are let go. May wait for one
  // frame's copy. Idempotent.
  void Close(const std::shared_ptr<IncomingTransfer>& transfer) EXCLUDES(mu_);

  absl::StatusOr<std::shared_ptr<Landing>> OnHeader(std::string_view header,
                                                    std::uint64_t payload_bytes,
                                                    PeerId from) override EXCLUDES(mu_);

  std::size_t live_transfers() const EXCLUDES(mu_);
  std::int64_t buffered_bytes() const { return shared_->buffered.load(); }
  // Frames dropped for this reason since the start.
  double Dropped(const std::string& reason) const;

 private:
  friend class FrameLanding;
  // Memory kept for the next frames: more than a transfer's window of the default size.
  static constexpr std::int64_t kKeptBufferBytes = 64 << 20;
  // Outlives the receiver: the transport may hold a landing longer.
  struct Shared {
    std::atomic<std::int64_t> buffered{0};
    FrameBuffers buffers{kKeptBufferBytes};
    std::shared_ptr<WorkerPool> workers;
    CounterFamily dropped;
  };

  absl::Status Drop(const char* reason, const std::string& detail) const;

  const std::int64_t max_buffered_bytes_;
  const std::shared_ptr<Shared> shared_;
  mutable Mutex mu_;
  std::unordered_map<std::uint64_t, std::shared_ptr<IncomingTransfer>> transfers_ GUARDED_BY(mu_);
  GaugeCallback live_gauge_;
  GaugeCallback buffered_gauge_;
};

}  // namespace baton
