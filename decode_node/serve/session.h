// Sole owner of one request: from the gRPC call to the last token.
//
// The hand-off part runs on a strand, tokens go straight from the engine's thread to the stream.
// Whatever ends it (last token, error, client gone, deadline, shutdown) frees everything it holds
// here and cancels its transfer. Thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/mutex.h"
#include "common/engine/engine.h"
#include "common/metrics/metrics.h"
#include "common/node/worker_pool.h"
#include "common/rpc/stream_writer.h"
#include "common/weights/layer_run.h"
#include "decode_node/serve/drift_monitor.h"
#include "decode_node/serve/handoff.h"
#include "decode_node/serve/request_checks.h"
#include "proto/decode.pb.h"

namespace baton {

// What sessions of a node share; outlives them.
struct SessionEnv {
  const ModelHost& host;
  std::shared_ptr<WorkerPool> workers;
  std::shared_ptr<const HandoffEnv> handoff;  // null: no transport, everything is computed here
  DecodeHandoffConfig config;
  CounterFamily requests;       // {model, outcome}
  CounterFamily prefixes;       // {where}: prompts with a shareable prefix, by who computed it
  CounterFamily fallbacks;      // {model, strategy}: asked for, and served by oracle instead
  HistogramFamily ttft;         // {model}
  HistogramFamily stages;       // {model, stage}: what the time to first token is made of
  HistogramFamily inter_token;  // {model}
  HistogramFamily e2e;          // {model}
  std::shared_ptr<DriftMonitor> drift;
};

// What a producer may send for the model: K/V of the weights below its adapter; of any weights in
// the same layout if the config names another base and no adapter.
Space AcceptedSpace(const HostedModel& model);

// What the time from a request's arrival at this node to its first token is made of, in seconds;
// the four add up to it.
struct FirstTokenStages {
  double queue = 0;     // waiting: for a link, for admission here and on the producer
  double prefill = 0;   // the producer's forward
  double transfer = 0;  // the rest of the hand-off; of one that failed, all of it
  double suffix = 0;    // the consumer's own prefill
};

class Session final : public RequestListener, public std::enable_shared_from_this<Session> {
 public:
  using Writer = StreamWriter<v1::DecodeEvent>;

  // `on_end` runs once, when nothing more will be written.
  Session(std::shared_ptr<const SessionEnv> env, CheckedRequest request,
          std::shared_ptr<Writer> writer, bool want_timing, absl::Time deadline,
          std::function<void()> on_end);

  // Once. Returns at once.
  void Start();
  // The client went away, the deadline passed, the node stops.
  void Cancel(const absl::Status& why) EXCLUDES(mu_);
  // Deadline and the hand-off's clocks; called at an interval.
  void Tick() EXCLUDES(mu_);

  void OnAdmitted(const Admission& admission) override EXCLUDES(mu_);
  void OnTokens(TokenDelta delta) override;
  void OnFinished(const FinishInfo& info) override EXCLUDES(mu_);

 private:
  // Empty: a hand-off is worth trying; else why not.
  std::string WhyNoHandoff() const;
  // For `auto`: whether calibration measured that codes serve this model.
  bool CodesServeWell() const;
  // For codes: sets decoder and cut, or says why there are none.
  std::string ChooseCodes();
  void StartHandoff() EXCLUDES(mu_);
  // Of the prefix, what a producer is asked for: all of it but whole blocks of the seam.
  std::int32_t SentTokens() const;
  std::shared_ptr<Handoff> handoff() const EXCLUDES(mu_);
  void OnResolved(const absl::StatusOr<Space>& space, double link_bytes_per_s);
  // Cuts codes to what the link carries in handoff.target_ms.
  void FitCodesTo(double link_bytes_per_s);
  // The drift monitor will want this request's predictions, whether the client does or not.
  void Watch();
  void KeepPredictions(TokenDelta& delta);
  std::string ApproxSpace(const std::string& weights_digest) const;
  void OnPublished(const HandoffResult& result) EXCLUDES(mu_);
  void OnAbandoned(const absl::Status& why) EXCLUDES(mu_);
  void Submit() EXCLUDES(mu_);
  // `auto` promises an answer by the cheapest way there is; only a strategy asked for by name can
  // fail.
  bool FailsWithHandoff() const;
  void SetFallback(const std::string& reason) EXCLUDES(mu_);
  FirstTokenStages StagesLocked() const REQUIRES(mu_);
  void ObserveFirstToken() EXCLUDES(mu_);
  // Of what was handed off: codes are "scd" where layers are patched or run here, else "reuse".
  const char* ServedName() const;
  v1::DecodeEvent MakeFinished(const FinishInfo& info) EXCLUDES(mu_);
  // Writes the final status; only the first call counts.
  void End(const absl::Status& status) EXCLUDES(mu_);

  const std::shared_ptr<const SessionEnv> env_;
  const std::shared_ptr<Writer> writer_;
  const bool want_timing_;
  const absl::Time deadline_;
  const std::chrono::steady_clock::time_point arrival_;
  const HostedModel& model_;
  const std::string request_id_;

  // Until Submit: Start's thread, then the strand.
  CheckedRequest request_;
  Coding coding_ = Coding::kRaw;                // if there is a hand-off
  std::shared_ptr<const CodeDecoder> decoder_;  // null: no codes
  CodeCut cut_;
  LayerRun run_;                            // of a hand-off: layers computed here over the prefix
  std::int32_t seam_ = 0;                   // last tokens of the prefix that do not land
  std::uint32_t code_bytes_per_token_ = 0;  // what cut_ was made for; 0: all

  // Engine's thread only.
  std::chrono::steady_clock::time_point first_token_;
  std::chrono::steady_clock::time_point last_token_;
  bool has_token_ = false;
  std::optional<DriftMonitor::Answer> watched_;  // set before Submit
  int client_top_logprobs_ = -1;                 // of a watched request; -1: it wants none

  mutable Mutex mu_;
  std::shared_ptr<Handoff> handoff_ GUARDED_BY(mu_);  // null: none is tried
  std::function<void()> on_end_ GUARDED_BY(mu_);
  bool ended_ GUARDED_BY(mu_) = false;
  bool submitted_ GUARDED_BY(mu_) = false;
  RequestHandle handle_ GUARDED_BY(mu_) = 0;
  std::string fallback_reason_ GUARDED_BY(mu_);
  HandoffResult handed_off_ GUARDED_BY(mu_);
  bool published_ GUARDED_BY(mu_) = false;
  std::optional<std::chrono::steady_clock::time_point> admitted_at_ GUARDED_BY(mu_);
  std::optional<std::chrono::steady_clock::time_point> handoff_over_at_ GUARDED_BY(mu_);
};

}  // namespace baton
