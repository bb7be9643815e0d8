// What a node shows to the outside: one gRPC service, HTTP for probes and metrics, the reaper's
// clock.
//
//   BATON_ASSIGN_OR_RETURN(auto server, NodeServer::Open("decode", config, metrics));
//   ...                                  // load the models; /health answers, /readyz says no
//   BATON_RETURN_IF_ERROR(server->Serve(hooks));
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/thread_budget.h"
#include "common/metrics/metrics.h"
#include "common/node/model_host.h"
#include "common/node/node_config.h"
#include "common/rpc/rpc_server.h"

namespace baton {

// The node's service; it outlives the server. The functions may be called from any thread.
struct NodeServerHooks {
  grpc::Service* service = nullptr;
  std::string service_name;        // as health checks spell it, "baton.v1.Decode"
  std::function<bool()> draining;  // new work is refused
  std::chrono::milliseconds tick_interval{100};
  std::function<void()> tick;
  std::string transport;  // what carries K/V, for the log
};

// Thread-safe once Serve has returned.
class NodeServer {
 public:
  // Starts HTTP, not ready yet, and makes sure that gRPC could start. `role` is for the log. Errors
  // name address and port, or the TLS file.
  static absl::StatusOr<std::unique_ptr<NodeServer>> Open(const std::string& role,
                                                          const NodeConfig& config,
                                                          MetricRegistry metrics);
  // Stops HTTP and the clock, then gRPC with the calls that still run.
  ~NodeServer();

  // Starts gRPC and the clock. The node is ready from here until it drains. Once only.
  absl::Status Serve(NodeServerHooks hooks);

  // Health says NOT_SERVING, `host` finishes what runs, then gRPC ends; all within `timeout`. The
  // service refuses new work before.
  void Drain(std::chrono::nanoseconds timeout, ModelHost& host);

  int grpc_port() const;  // once Serve has returned
  int http_port() const;

 private:
  class Impl;
  explicit NodeServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// What both nodes start with: files checked, ports tested, HTTP up, then the models loaded.
struct NodeBase {
  ThreadBudget threads;
  std::unique_ptr<NodeServer> server;
  std::unique_ptr<ModelHost> host;
};

// Errors of ThreadBudget::FromConfig, ModelFiles::Open, NodeServer::Open and ModelHost::Load.
absl::StatusOr<NodeBase> StartNodeBase(const std::string& role, const NodeConfig& config,
                                       MetricRegistry metrics);

}  // namespace baton
