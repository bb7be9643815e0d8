// One request's hand-off: find a producer, receive the prefix, or say why not.
//
//   auto handoff = Handoff::Create(env, plan, callbacks);
//   handoff->Resolve();          // links to the first producer that fits → on_resolved
//   handoff->Begin(landing);     // pages are reserved → on_published or on_abandoned
//
// States:  idle → linking → resolved → receiving → over. In `receiving`, an attempt that fails
// (stream, frame, silence) gives way to the next producer with the next generation; when there is
// none, the hand-off is abandoned. Everything happens on one strand, so no state is locked and no
// thread waits. After Cancel, or once over, no callback comes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/engine/request.h"
#include "common/metrics/metrics.h"
#include "common/node/model_host.h"
#include "common/node/worker_pool.h"
#include "common/prefix_hash/space.h"
#include "common/rpc/client_stream.h"
#include "common/scd/coding.h"
#include "decode_node/serve/code_receiver.h"
#include "decode_node/serve/decode_config.h"
#include "decode_node/serve/producer_links.h"
#include "proto/prefill.grpc.pb.h"

namespace baton {

// What hand-offs of a node share; outlives them.
struct HandoffEnv {
  CodeReceiver& receiver;
  ProducerLinks& links;
  DecodeHandoffConfig config;
  std::uint64_t incarnation = 0;
  std::function<std::string()> transport_address;  // asked each time: it may change
  HistogramFamily seconds;                         // {strategy, lane}
  CounterFamily bytes;                             // {strategy, lane}
  CounterFamily failures;                          // {strategy, reason}
};

struct HandoffPlan {
  std::string request_id;
  std::string base_model;
  std::vector<std::int32_t> tokens;       // the shareable prefix
  std::vector<std::string> block_hashes;  // hex
  std::string scope;
  std::vector<std::string> producers;  // gRPC addresses in order of preference
  Space wants;
  KvPageLayout page_layout;
  Coding coding = Coding::kRaw;
  // kReuse only; the cut is what `code_bytes_per_token` (0: all) makes of the decoder's shape.
  std::shared_ptr<const CodeDecoder> decoder;
  CodeCut cut;
  std::uint32_t code_bytes_per_token = 0;
  absl::Time deadline = absl::InfiniteFuture();
};

struct HandoffResult {
  std::string producer;  // its name
  std::string lane;
  double queue_s = 0;    // as the producer says: waiting for admission there
  double prefill_s = 0;  // and its forward
  double import_s = 0;   // work on frames here, all workers added up
  std::uint64_t bytes = 0;
  std::uint32_t producer_cached_tokens = 0;
};

// The producer's word for the lane, if it can be one (letters, digits and "_/,.:+-", at most 64 of
// them); else "unknown": it becomes a metric's label and a line in logs.
std::string CheckedLane(const std::string& lane);

struct HandoffCallbacks {
  // The space of the first producer that links and what its link has been seen to carry (bytes per
  // second; 0: not known), or why none does.
  std::function<void(absl::StatusOr<Space>, double)> on_resolved;
  std::function<void(const HandoffResult&)> on_published;
  std::function<void(const absl::Status&)> on_abandoned;
};

class Handoff : public std::enable_shared_from_this<Handoff> {
 public:
  static std::shared_ptr<Handoff> Create(std::shared_ptr<const HandoffEnv> env, HandoffPlan plan,
                                         Strand strand, HandoffCallbacks callbacks);

  // Each returns at once.
  void Resolve();
  // For codes, before Begin: how much of them is wanted; see HandoffPlan.
  void SetCut(CodeCut cut, std::uint32_t code_bytes_per_token);
  void Begin(std::shared_ptr<PrefixLanding> landing);
  void Cancel();
  // Looks at the clocks; called at an interval.
  void Tick();

 private:
  enum class State { kIdle, kLinking, kResolved, kReceiving, kOver };
  using Call = ClientStream<v1::StartEvent>;
  using SteadyClock = std::chrono::steady_clock;

  Handoff(std::shared_ptr<const HandoffEnv> env, HandoffPlan plan, Strand strand,
          HandoffCallbacks callbacks);

  // Runs on the strand, with a reference held.
  template <typename F>
  void Post(F f) {
    strand_.Post([self = shared_from_this(), f = std::move(f)]() mutable { f(*self); });
  }
  // As Post, for what belongs to the current attempt only.
  template <typename F>
  std::function<void()> ForAttempt(F f);

  void Link();
  void OnLinked(std::size_t producer, ProducerLinks::Result result);
  void OpenCall();
  v1::StartRequest MakeStart(const std::string& secret) const;
  void OnEvent(const v1::StartEvent& event);
  void OnCallDone(const absl::Status& status);
  void PublishIfComplete();
  void FailAttempt(const absl::Status& status);
  void NextProducer();
  void Abandon();
  void CheckClocks();
  void StopAttempt();
  void Finish();

  const std::shared_ptr<const HandoffEnv> env_;
  HandoffPlan plan_;  // constant from Begin on
  Strand strand_;
  std::atomic<bool> over_{false};  // spares the strand the ticks of a session that only decodes

  // Strand only.
  HandoffCallbacks callbacks_;
  State state_ = State::kIdle;
  std::size_t producer_ = 0;  // index into plan_.producers
  std::shared_ptr<const ProducerLink> link_;
  std::optional<Space> space_;  // of the first producer; later ones must send the same
  absl::Status last_error_;
  std::uint64_t transfer_id_ = 0;
  std::uint32_t generation_ = 0;
  std::shared_ptr<PrefixLanding> landing_;
  std::shared_ptr<IncomingTransfer> incoming_;
  std::shared_ptr<Call> call_;
  std::optional<v1::StartEvent::Done> done_;
  std::uint32_t producer_cached_ = 0;  // of the current attempt
  SteadyClock::time_point begin_;
  SteadyClock::time_point last_sign_;  // of life, from the stream
};

}  // namespace baton
