// The router: what the gRPC service and the HTTP gateway both call.
//
//   BATON_ASSIGN_OR_RETURN(auto directory, StaticDirectory::Create(decode, prefill));
//   BATON_ASSIGN_OR_RETURN(auto router, Router::Create(config, *directory, registry));
//   InferenceService service(*router);
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/metrics/metrics.h"
#include "router/discovery/node_directory.h"
#include "router/gateway/backend.h"
#include "router/route/router_config.h"

namespace baton {

class RouterCore;

// Thread-safe.
class Router final : public GenerationBackend {
 public:
  // Starts asking the nodes at once; none needs to be there. `directory` and `clock` must outlive
  // it. Errors: TLS files; a bad number of threads.
  static absl::StatusOr<std::unique_ptr<Router>> Create(const RouterConfig& config,
                                                        const NodeDirectory& directory,
                                                        MetricRegistry registry,
                                                        const Clock& clock = Clock::Real());
  // Whoever started generations must have cancelled them or let them end.
  ~Router() override;

  std::shared_ptr<Generation> Generate(CallInfo info, v1::GenerateRequest request,
                                       std::shared_ptr<GenerationSink> sink) override;
  std::vector<v1::ModelInfo> Models() const override;
  bool Ready() const override;

  // `done` runs once, possibly before this returns. Errors as Generate's.
  void Tokenize(const v1::TokenizeRequest& request,
                std::function<void(absl::StatusOr<v1::TokenizeResponse>)> done);
  void Detokenize(const v1::DetokenizeRequest& request,
                  std::function<void(absl::StatusOr<v1::DetokenizeResponse>)> done);

  // New generations are refused with UNAVAILABLE from now on.
  void StartDraining();
  int inflight() const;

 private:
  explicit Router(std::unique_ptr<RouterCore> core);
  const std::unique_ptr<RouterCore> core_;
  std::atomic<bool> draining_{false};
};

}  // namespace baton
