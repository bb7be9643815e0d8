#include "common/node/main/node_main.h"

#include <cstdio>

#include "absl/time/time.h"
#include "common/base/fault.h"
#include "common/base/logging.h"
#include "common/transport/ucx/ucx_transport.h"

namespace baton::node_main_internal {

int Fail(const NodeProgram& program, const absl::Status& status, int code) {
  std::fprintf(stderr, "%s: %s\n", program.name.c_str(), std::string(status.message()).c_str());
  return code;
}

absl::Status SetUp(const NodeConfig& config, const std::string& effective) {
  InitLogging({config.log.level, config.log.format, NodeName(config.node.name), {}});
  if (absl::Status s = InitFaultsFromEnv(); !s.ok()) return s;
  LogLines(LogLevel::kInfo, "config: ", effective);
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<Transport>> MakeTransport(const NodeProgram& program,
                                                         const TransportConfig& config) {
  UcxOptions options;
  if (!config.tls.empty()) options.tls = config.tls;
  options.net_devices = config.net_devices;
  options.progress_deadline = absl::FromChrono(config.progress_deadline);
  options.window = config.window;
  options.max_landing_bytes = static_cast<uint64_t>(config.max_landing_bytes);
  auto transport = UcxTransport::Create(options);
  if (transport.ok()) return std::shared_ptr<Transport>(*std::move(transport));
  const bool named = !config.tls.empty() || !config.net_devices.empty();
  if (program.needs_transport || named) return transport.status();
  BATON_LOG_WARN("no UCX transport, every prefix is computed here: {}",
                 transport.status().message());
  return nullptr;
}

void WaitForShutdown(ShutdownSignal& shutdown, std::function<void()> reload) {
  shutdown.OnHup(std::move(reload));
  shutdown.Wait();
  shutdown.OnHup(nullptr);
  BATON_LOG_INFO("draining");
}

}  // namespace baton::node_main_internal
