#include "prefill_node/prefill_node.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/node/command_line.h"
#include "common/node/node_server.h"
#include "common/node/worker_pool.h"
#include "prefill_node/code_spill.h"
#include "prefill_node/service.h"

namespace baton {
namespace {

constexpr std::chrono::milliseconds kTick(100);

}  // namespace

class PrefillNode::Impl {
 public:
  Impl(const PrefillConfig& config, std::shared_ptr<Transport> transport)
      : config_(config), transport_(std::move(transport)) {}

  // Callers go first, then what they call.
  ~Impl() {
    Stop();
    server_.reset();
    Stop();                          // transfers that began while the server went down
    if (workers_) workers_->Stop();  // they submit to engines; what engines post now is dropped
    host_.reset();
  }

  absl::Status Start() {
    BATON_ASSIGN_OR_RETURN(std::unique_ptr<CodeSpill> spill, OpenSpill());  // before models load
    BATON_ASSIGN_OR_RETURN(NodeBase base, StartNodeBase("prefill", config_, metrics_));
    server_ = std::move(base.server);
    host_ = std::move(base.host);
    workers_ = std::make_shared<WorkerPool>(base.threads.worker);
    service_ = std::make_unique<PrefillService>(
        PrefillServiceOptions{NodeName(config_.node.name), NewIncarnation(), config_.handoff},
        *host_, transport_.get(), workers_, std::move(spill), metrics_);
    return server_->Serve({.service = service_.get(),
                           .service_name = "baton.v1.Prefill",
                           .draining = [this] { return service_->draining(); },
                           .tick_interval = kTick,
                           .tick = [this] { service_->Tick(); },
                           .transport = transport_ ? transport_->version() : "none"});
  }

  void Drain(std::chrono::nanoseconds timeout) {
    service_->StartDraining();
    server_->Drain(timeout, *host_);
  }

  const PrefillConfig config_;
  const std::shared_ptr<Transport> transport_;
  MetricRegistry metrics_;
  std::unique_ptr<ModelHost> host_;
  std::shared_ptr<WorkerPool> workers_;
  std::unique_ptr<PrefillService> service_;
  std::unique_ptr<NodeServer> server_;

 private:
  // Null where none is configured.
  absl::StatusOr<std::unique_ptr<CodeSpill>> OpenSpill() {
    const PrefillHandoffConfig& c = config_.handoff;
    if (c.code_spill_path.empty()) return nullptr;
    auto spill = CodeSpill::Open({c.code_spill_path, c.code_spill_bytes}, metrics_);
    if (spill.ok()) return spill;
    return absl::Status(spill.status().code(),
                        absl::StrCat("handoff.code_spill_path: ", spill.status().message()));
  }
  void Stop() {
    if (!service_) return;
    service_->StartDraining();
    service_->AbortAll(absl::UnavailableError("the prefill node stops"));
  }
};

absl::StatusOr<std::unique_ptr<PrefillNode>> PrefillNode::Start(
    const PrefillConfig& config, std::shared_ptr<Transport> transport) {
  auto impl = std::make_unique<Impl>(config, std::move(transport));
  BATON_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<PrefillNode>(new PrefillNode(std::move(impl)));
}

PrefillNode::PrefillNode(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PrefillNode::~PrefillNode() = default;
int PrefillNode::grpc_port() const { return impl_->server_->grpc_port(); }
int PrefillNode::http_port() const { return impl_->server_->http_port(); }
ModelHost& PrefillNode::host() { return *impl_->host_; }
PrefillService& PrefillNode::service() { return *impl_->service_; }
MetricRegistry& PrefillNode::metrics() { return impl_->metrics_; }
void PrefillNode::Drain(std::chrono::nanoseconds timeout) { impl_->Drain(timeout); }

}  // namespace baton
