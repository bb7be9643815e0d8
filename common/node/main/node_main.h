// What the two nodes' main() have in common.
//
//   return RunNode<DecodeNode>(argc, argv, {.name = "baton-decode", .description = "…"},
//                              DecodeSection());
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "common/base/signals.h"
#include "common/config/load.h"
#include "common/config/reload.h"
#include "common/node/command_line.h"
#include "common/node/node_config.h"
#include "common/transport/transport.h"

namespace baton {

struct NodeProgram {
  std::string name;         // of the binary
  std::string description;  // for --help
  // False: where UCX does not run the node gets no transport, unless the file asks for one by name.
  bool needs_transport = false;
};

namespace node_main_internal {

// Prints the error; returns `code`.
int Fail(const NodeProgram& program, const absl::Status& status, int code);

// Logging, faults of the environment, the config in the log.
absl::Status SetUp(const NodeConfig& config, const std::string& effective);

// Null where UCX does not run and nobody needs it.
absl::StatusOr<std::shared_ptr<Transport>> MakeTransport(const NodeProgram& program,
                                                         const TransportConfig& config);

// Blocks until SIGTERM or SIGINT. SIGHUP calls `reload`.
void WaitForShutdown(ShutdownSignal& shutdown, std::function<void()> reload);

}  // namespace node_main_internal

// Runs a daemon from its flags to its exit code. `Node` has `Start(config, transport)`,
// `grpc_port()`, `http_port()` and `Drain(timeout)`; `Config` is a NodeConfig.
template <typename Node, typename Config>
int RunNode(int argc, char** argv, const NodeProgram& program,
            const config::Section<Config>& section) {
  using node_main_internal::Fail;
  const CommandLine line = ParseCommandLine(argc, argv, program.name, program.description);
  if (line.exit_code >= 0) return line.exit_code;
  config::LoadOptions load;
  load.sets = line.sets;
  auto config = config::LoadFile(section, line.config_path, load);
  if (!config.ok()) return Fail(program, config.status(), 2);
  const std::string effective = config::PrintEffective(section, *config);
  if (line.check) {
    std::fputs(effective.c_str(), stdout);
    return 0;
  }
  // Before any thread starts, so that all of them block the signals.
  auto shutdown = ShutdownSignal::Install();
  if (!shutdown.ok()) return Fail(program, shutdown.status(), 1);
  if (absl::Status s = node_main_internal::SetUp(*config, effective); !s.ok()) {
    return Fail(program, s, 2);
  }
  auto transport = node_main_internal::MakeTransport(program, config->transport);
  if (!transport.ok()) return Fail(program, transport.status(), 1);
  auto node = Node::Start(*config, *std::move(transport));
  if (!node.ok()) return Fail(program, node.status(), 1);
  if (!line.ports_file.empty()) {
    absl::Status s = WritePortsFile(line.ports_file, (*node)->grpc_port(), (*node)->http_port());
    if (!s.ok()) return Fail(program, s, 1);
  }
  node_main_internal::WaitForShutdown(**shutdown, [&] {
    const absl::Status status = config::ReloadFile(section, line.config_path, load, *config);
    if (status.ok()) SetLogLevel(config->log.level);
  });
  (*node)->Drain(config->shutdown.drain_timeout);
  return 0;
}

}  // namespace baton
