// baton.v1.Prefill: links, transfers, and the reaper's table of them.
//
// gRPC threads check a request, submit it and return; the engine's thread, workers and the
// transport do the rest through CodeSender. Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "common/base/mutex.h"
#include "common/metrics/metrics.h"
#include "common/node/model_host.h"
#include "common/node/worker_pool.h"
#include "common/rpc/stream_writer.h"
#include "common/transport/transport.h"
#include "prefill_node/code_sender.h"
#include "prefill_node/code_spill.h"
#include "prefill_node/prefill_config.h"
#include "prefill_node/producer.h"
#include "proto/prefill.grpc.pb.h"

namespace baton {

struct PrefillServiceOptions {
  std::string node_name;
  std::uint64_t incarnation = 0;
  PrefillHandoffConfig handoff;
};

class PrefillService final : public v1::Prefill::CallbackService {
 public:
  // Everything must outlive the service; `transport` may be null (transfers are then refused), and
  // `spill` (codes are then kept in memory only).
  PrefillService(PrefillServiceOptions options, ModelHost& host, Transport* transport,
                 std::shared_ptr<WorkerPool> workers, std::unique_ptr<CodeSpill> spill,
                 MetricRegistry& metrics);

  grpc::ServerUnaryReactor* Link(grpc::CallbackServerContext* context,
                                 const v1::LinkRequest* request,
                                 v1::LinkResponse* response) override;
  grpc::ServerWriteReactor<v1::StartEvent>* Start(grpc::CallbackServerContext* context,
                                                  const v1::StartRequest* request) override;
  grpc::ServerUnaryReactor* Info(grpc::CallbackServerContext* context,
                                 const v1::PrefillInfoRequest* request,
                                 v1::PrefillInfo* response) override;

  // New transfers are refused with UNAVAILABLE from now on.
  void StartDraining() { draining_ = true; }
  bool draining() const { return draining_; }
  // Heartbeats, and the end of transfers whose lease ran out. Called at an interval well below the
  // heartbeat's, by a thread of its own.
  void Tick() EXCLUDES(mu_);
  void AbortAll(const absl::Status& why) EXCLUDES(mu_);
  std::size_t live_transfers() const EXCLUDES(mu_);

 private:
  using Writer = StreamWriter<v1::StartEvent>;
  struct Transfer {
    std::shared_ptr<CodeSender> sender;
    std::shared_ptr<Writer> writer;
    std::shared_ptr<BlockCoder> coder;  // of codes; else null
    std::chrono::steady_clock::time_point next_heartbeat;
    std::chrono::steady_clock::time_point lease_end;
  };

  // What an accepted transfer has the engine do.
  struct Work {
    Engine* engine = nullptr;
    EngineRequest request;
    std::shared_ptr<CodeSender> sender;
    std::shared_ptr<BlockCoder> coder;  // of codes; else null
  };

  absl::Status StartTransfer(const v1::StartRequest& request, const std::string& request_id,
                             const std::shared_ptr<Writer>& writer);
  // Codes come from the store, or from whoever is making them (once: `may_wait`), or are made here.
  // On a worker where the store reads files.
  void StartCoding(Work work, bool may_wait);
  void PostCoding(Work work, bool may_wait);
  static void Submit(Work work);
  void OnEnd(std::uint64_t key, const std::shared_ptr<Writer>& writer, absl::Status status,
             const TransferSummary& summary) EXCLUDES(mu_);

  const PrefillServiceOptions options_;
  ModelHost& host_;
  Transport* const transport_;
  const std::shared_ptr<WorkerPool> workers_;
  const Producer producer_;
  CodeStore code_store_;
  CodingTurns turns_;
  std::atomic<bool> draining_{false};

  CounterFamily transfers_total_;
  CounterFamily bytes_total_;
  HistogramFamily seconds_;
  Counter waits_;

  mutable Mutex mu_;
  std::uint64_t next_key_ GUARDED_BY(mu_) = 1;
  std::map<std::uint64_t, Transfer> transfers_ GUARDED_BY(mu_);
  GaugeCallback live_gauge_;  // last: it reads the table
};

}  // namespace baton
