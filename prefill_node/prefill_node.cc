#include "prefill_node/prefill_node.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/ids.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/base/thread_budget.h"
#include "common/node/command_line.h"
#include "common/node/http_status.h"
#include "common/node/ticker.h"
#include "common/node/worker_pool.h"
#include "common/rpc/rpc_server.h"
#include "prefill_node/service.h"

namespace baton {
namespace {

constexpr std::chrono::milliseconds kTick(100);
constexpr char kServiceName[] = "baton.v1.Prefill";

}  // namespace

class PrefillNode::Impl {
 public:
  Impl(const PrefillConfig& config, std::shared_ptr<Transport> transport)
      : config_(config), transport_(std::move(transport)) {}

  // Callers go first, then what they call.
  ~Impl() {
    http_.reset();
    ticker_.reset();
    if (service_) {
      service_->StartDraining();
      service_->AbortAll(absl::UnavailableError("the prefill node stops"));
    }
    server_.reset();
    if (service_) service_->AbortAll(absl::UnavailableError("the prefill node stops"));
    host_.reset();
    if (workers_) workers_->Stop();
  }

  absl::Status Start() {
    BATON_ASSIGN_OR_RETURN(const ThreadBudget threads,
                           ThreadBudget::FromConfig(config_.threads.engine.value_or(0),
                                                    config_.threads.worker.value_or(0)));
    BATON_ASSIGN_OR_RETURN(
        host_, ModelHost::Load({config_.models, config_.memory, config_.engine, threads.engine},
                               metrics_));
    for (const std::string& line : host_->plan().lines) BATON_LOG_INFO("memory plan: {}", line);
    workers_ = std::make_shared<WorkerPool>(threads.worker);
    service_ = std::make_unique<PrefillService>(
        PrefillServiceOptions{NodeName(config_.node.name), NewIncarnation(), config_.handoff},
        *host_, transport_.get(), workers_, metrics_);
    RpcServerOptions rpc;
    rpc.bind = config_.rpc.bind;
    rpc.port = config_.rpc.port;
    rpc.max_message_bytes = static_cast<int>(config_.rpc.max_message_bytes);
    if (config_.rpc.tls.enabled()) {
      rpc.tls = ServerTls{config_.rpc.tls.cert, config_.rpc.tls.key, config_.rpc.tls.ca};
    }
    BATON_ASSIGN_OR_RETURN(server_, RpcServer::Start(rpc, {service_.get()}));
    BATON_ASSIGN_OR_RETURN(http_, HttpStatus::Start({config_.http.bind, config_.http.port,
                                                     [this] { return !service_->draining(); }},
                                                    metrics_));
    ticker_ = std::make_unique<Ticker>(kTick, [this] { service_->Tick(); });
    server_->SetServing(kServiceName, true);
    server_->SetServing("", true);
    BATON_LOG_INFO(
        "prefill node \"{}\": gRPC on {} (peers use {}), http on {}:{}, largest message "
        "{} bytes, transport {}",
        NodeName(config_.node.name), server_->address(),
        AdvertisedAddress(config_.rpc.advertise, config_.rpc.bind, server_->port()),
        config_.http.bind, http_->port(), config_.rpc.max_message_bytes,
        transport_ ? transport_->version() : "none");
    return absl::OkStatus();
  }

  void Drain(std::chrono::nanoseconds timeout) {
    const absl::Time end = absl::Now() + absl::FromChrono(timeout);
    service_->StartDraining();
    server_->SetServing(kServiceName, false);
    server_->SetServing("", false);
    host_->Drain(timeout);
    server_->Drain(std::max(absl::ZeroDuration(), end - absl::Now()));
  }

  const PrefillConfig config_;
  const std::shared_ptr<Transport> transport_;
  MetricRegistry metrics_;
  std::unique_ptr<ModelHost> host_;
  std::shared_ptr<WorkerPool> workers_;
  std::unique_ptr<PrefillService> service_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<HttpStatus> http_;
  std::unique_ptr<Ticker> ticker_;
};

absl::StatusOr<std::unique_ptr<PrefillNode>> PrefillNode::Start(
    const PrefillConfig& config, std::shared_ptr<Transport> transport) {
  auto impl = std::make_unique<Impl>(config, std::move(transport));
  BATON_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<PrefillNode>(new PrefillNode(std::move(impl)));
}

PrefillNode::PrefillNode(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
PrefillNode::~PrefillNode() = default;
int PrefillNode::grpc_port() const { return impl_->server_->port(); }
int PrefillNode::http_port() const { return impl_->http_->port(); }
ModelHost& PrefillNode::host() { return *impl_->host_; }
PrefillService& PrefillNode::service() { return *impl_->service_; }
MetricRegistry& PrefillNode::metrics() { return impl_->metrics_; }
void PrefillNode::Drain(std::chrono::nanoseconds timeout) { impl_->Drain(timeout); }

}  // namespace baton
