#include "common/node/node_server.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/logging.h"
#include "common/base/status_macros.h"
#include "common/node/command_line.h"
#include "common/node/http_status.h"
#include "common/node/ticker.h"
#include "common/rpc/rpc_config.h"

namespace baton {

class NodeServer::Impl {
 public:
  Impl(std::string role, const NodeConfig& config)
      : role_(std::move(role)), name_(config.node.name), rpc_(config.rpc), http_(config.http) {}

  ~Impl() {
    status_.reset();
    ticker_.reset();
    server_.reset();
  }

  absl::Status Open(MetricRegistry metrics) {
    BATON_RETURN_IF_ERROR(RpcServer::Check(ToRpcServerOptions(rpc_)));
    HttpStatusOptions options{http_.bind, http_.port, [this] { return Ready(); }};
    BATON_ASSIGN_OR_RETURN(status_, HttpStatus::Start(std::move(options), std::move(metrics)));
    return absl::OkStatus();
  }

  absl::Status Serve(NodeServerHooks hooks) {
    hooks_ = std::move(hooks);
    BATON_ASSIGN_OR_RETURN(server_, RpcServer::Start(ToRpcServerOptions(rpc_), {hooks_.service}));
    ticker_ = std::make_unique<Ticker>(hooks_.tick_interval, hooks_.tick);
    server_->SetServing(hooks_.service_name, true);
    server_->SetServing("", true);
    serving_.store(true);
    BATON_LOG_INFO(
        "{} node \"{}\": gRPC on {} (peers use {}), http on {}:{}, largest message {} bytes, "
        "transport {}",
        role_, NodeName(name_), server_->address(),
        AdvertisedAddress(rpc_.advertise, rpc_.bind, server_->port()), http_.bind, status_->port(),
        rpc_.max_message_bytes, hooks_.transport);
    return absl::OkStatus();
  }

  void Drain(std::chrono::nanoseconds timeout, ModelHost& host) {
    const absl::Time end = absl::Now() + absl::FromChrono(timeout);
    server_->SetServing(hooks_.service_name, false);
    server_->SetServing("", false);
    host.Drain(timeout);
    server_->Drain(std::max(absl::ZeroDuration(), end - absl::Now()));
  }

  int grpc_port() const { return server_->port(); }
  int http_port() const { return status_->port(); }

 private:
  // On the HTTP thread, also before Serve: `hooks_` is written before `serving_` is set.
  bool Ready() const { return serving_.load() && !hooks_.draining(); }

  const std::string role_;
  const std::string name_;
  const config::RpcConfig rpc_;
  const config::HttpConfig http_;
  NodeServerHooks hooks_;
  std::atomic<bool> serving_{false};
  std::unique_ptr<HttpStatus> status_;
  std::unique_ptr<RpcServer> server_;
  std::unique_ptr<Ticker> ticker_;
};

absl::StatusOr<std::unique_ptr<NodeServer>> NodeServer::Open(const std::string& role,
                                                             const NodeConfig& config,
                                                             MetricRegistry metrics) {
  auto impl = std::make_unique<Impl>(role, config);
  BATON_RETURN_IF_ERROR(impl->Open(std::move(metrics)));
  return std::unique_ptr<NodeServer>(new NodeServer(std::move(impl)));
}

NodeServer::NodeServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
NodeServer::~NodeServer() = default;

absl::Status NodeServer::Serve(NodeServerHooks hooks) { return impl_->Serve(std::move(hooks)); }
void NodeServer::Drain(std::chrono::nanoseconds timeout, ModelHost& host) {
  impl_->Drain(timeout, host);
}
int NodeServer::grpc_port() const { return impl_->grpc_port(); }
int NodeServer::http_port() const { return impl_->http_port(); }

absl::StatusOr<NodeBase> StartNodeBase(const std::string& role, const NodeConfig& config,
                                       MetricRegistry metrics) {
  NodeBase base;
  BATON_ASSIGN_OR_RETURN(base.threads, ThreadBudget::FromConfig(config.threads.engine.value_or(0),
                                                                config.threads.worker.value_or(0)));
  BATON_ASSIGN_OR_RETURN(ModelFiles files,
                         ModelFiles::Open(config.models, config.engine.max_lora_rank));
  BATON_ASSIGN_OR_RETURN(base.server, NodeServer::Open(role, config, metrics));
  BATON_ASSIGN_OR_RETURN(
      base.host, ModelHost::Load({.models = config.models,
                                  .memory = config.memory,
                                  .engine = config.engine,
                                  .engine_threads = base.threads.engine,
                                  .load_threads = base.threads.engine + base.threads.worker},
                                 std::move(files), metrics));
  for (const std::string& line : base.host->plan().lines) BATON_LOG_INFO("memory plan: {}", line);
  return base;
}

}  // namespace baton
