// baton-prefill: reads the config, loads the models, serves until SIGTERM, drains.
#include <cstdio>
#include <memory>
#include <utility>

#include "absl/time/time.h"
#include "common/base/fault.h"
#include "common/base/logging.h"
#include "common/base/signals.h"
#include "common/config/load.h"
#include "common/config/reload.h"
#include "common/node/command_line.h"
#include "common/transport/ucx/ucx_transport.h"
#include "prefill_node/prefill_node.h"

namespace baton {
namespace {

int Fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "baton-prefill: %s\n", std::string(status.message()).c_str());
  return code;
}

// A producer without a transport is of no use: what UCX says stops the start.
absl::StatusOr<std::shared_ptr<Transport>> MakeTransport(const TransportConfig& config) {
  UcxOptions options;
  if (!config.tls.empty()) options.tls = config.tls;
  options.net_devices = config.net_devices;
  options.progress_deadline = absl::FromChrono(config.progress_deadline);
  options.window = config.window;
  options.max_landing_bytes = static_cast<uint64_t>(config.max_landing_bytes);
  auto transport = UcxTransport::Create(options);
  if (!transport.ok()) return transport.status();
  return std::shared_ptr<Transport>(*std::move(transport));
}

int Main(int argc, char** argv) {
  const CommandLine line =
      ParseCommandLine(argc, argv, "baton-prefill", "Computes K/V of shared prefixes.");
  if (line.exit_code >= 0) return line.exit_code;
  const auto section = PrefillSection();
  config::LoadOptions load;
  load.sets = line.sets;
  auto config = config::LoadFile(section, line.config_path, load);
  if (!config.ok()) return Fail(config.status(), 2);
  if (line.check) {
    std::printf("%s", config::PrintEffective(section, *config).c_str());
    return 0;
  }
  auto shutdown = ShutdownSignal::Install();
  if (!shutdown.ok()) return Fail(shutdown.status(), 1);
  InitLogging({config->log.level, config->log.format, NodeName(config->node.name), {}});
  if (absl::Status s = InitFaultsFromEnv(); !s.ok()) return Fail(s, 2);
  LogLines(LogLevel::kInfo, "config: ", config::PrintEffective(section, *config));
  auto transport = MakeTransport(config->transport);
  if (!transport.ok()) return Fail(transport.status(), 1);
  auto node = PrefillNode::Start(*config, *std::move(transport));
  if (!node.ok()) return Fail(node.status(), 1);
  if (!line.ports_file.empty()) {
    absl::Status s = WritePortsFile(line.ports_file, (*node)->grpc_port(), (*node)->http_port());
    if (!s.ok()) return Fail(s, 1);
  }
  (*shutdown)->OnHup([&] {
    const absl::Status status = config::ReloadFile(section, line.config_path, load, *config);
    if (status.ok()) SetLogLevel(config->log.level);
  });
  (*shutdown)->Wait();
  (*shutdown)->OnHup(nullptr);
  BATON_LOG_INFO("draining");
  (*node)->Drain(config->shutdown.drain_timeout);
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) { return baton::Main(argc, argv); }
