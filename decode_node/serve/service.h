// baton.v1.Decode: requests become sessions; what the node is and holds can be asked.
//
// gRPC threads check a request, start its session and return. Thread-safe.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/mutex.h"
#include "common/node/model_host.h"
#include "decode_node/serve/decode_config.h"
#include "decode_node/serve/session.h"
#include "proto/decode.grpc.pb.h"

namespace baton {

struct DecodeServiceOptions {
  std::string node_name;
  std::uint64_t incarnation = 0;
  DecodeHandoffConfig handoff;
  int max_queue = 0;  // what Info says of the engine's bound
};

class DecodeService final : public v1::Decode::CallbackService {
 public:
  // `host` must outlive the service.
  DecodeService(DecodeServiceOptions options, ModelHost& host,
                std::shared_ptr<const SessionEnv> env);

  grpc::ServerWriteReactor<v1::DecodeEvent>* Generate(grpc::CallbackServerContext* context,
                                                      const v1::DecodeRequest* request) override;
  grpc::ServerUnaryReactor* Info(grpc::CallbackServerContext* context,
                                 const v1::DecodeInfoRequest* request,
                                 v1::DecodeInfo* response) override;
  grpc::ServerWriteReactor<v1::AssetChunk>* GetAsset(grpc::CallbackServerContext* context,
                                                     const v1::GetAssetRequest* request) override;

  // New requests are refused with UNAVAILABLE from now on.
  void StartDraining() { draining_ = true; }
  bool draining() const { return draining_; }
  // The reaper: deadlines of sessions and hand-offs.
  void Tick() EXCLUDES(mu_);
  void CancelAll(const absl::Status& why) EXCLUDES(mu_);
  std::size_t live_sessions() const EXCLUDES(mu_);

 private:
  std::vector<std::shared_ptr<Session>> Sessions() const EXCLUDES(mu_);

  const DecodeServiceOptions options_;
  ModelHost& host_;
  const std::shared_ptr<const SessionEnv> env_;
  std::map<std::string, std::string> assets_;  // by digest; constant
  std::atomic<bool> draining_{false};
  mutable Mutex mu_;
  std::uint64_t next_key_ GUARDED_BY(mu_) = 1;
  std::map<std::uint64_t, std::shared_ptr<Session>> sessions_ GUARDED_BY(mu_);
};

}  // namespace baton
