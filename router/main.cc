// baton-router: the public gRPC and HTTP API of a cluster.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <boost/asio/ip/host_name.hpp>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/logging.h"
#include "common/base/signals.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/base/version.h"
#include "common/config/load.h"
#include "common/config/reload.h"
#include "common/metrics/metrics.h"
#include "common/rpc/rpc_config.h"
#include "common/rpc/rpc_server.h"
#include "router/discovery/static_directory.h"
#include "router/gateway/api_keys.h"
#include "router/gateway/http_server.h"
#include "router/gateway/openai_service.h"
#include "router/route/router.h"
#include "router/route/router_config.h"
#include "router/route/router_service.h"

namespace baton {
namespace {

constexpr char kServiceName[] = "baton.v1.Inference";

struct Arguments {
  std::string config;
  std::vector<std::string> sets;
  std::string ports_file;
  bool check = false;
};

// Through a temporary file, so that a reader never sees half of it.
absl::Status WritePorts(const std::string& path, int grpc_port, int http_port) {
  const std::string temporary = path + ".tmp";
  {
    std::ofstream out(temporary, std::ios::trunc);
    out << "{\"grpc\": " << grpc_port << ", \"http\": " << http_port << "}\n";
    out.flush();
    if (!out) return absl::PermissionDeniedError(Cat("--ports-file ", path, ": can't be written"));
  }
  if (std::rename(temporary.c_str(), path.c_str()) != 0) {
    return absl::PermissionDeniedError(Cat("--ports-file ", path, ": can't be written"));
  }
  return absl::OkStatus();
}

config::LoadOptions LoadOptionsOf(const Arguments& arguments) {
  config::LoadOptions options;
  options.sets = arguments.sets;
  return options;
}

void SetUpLogging(const RouterConfig& config) {
  LogOptions options;
  options.level = config.log.level;
  options.format = config.log.format;
  options.node = config.node.name.empty() ? boost::asio::ip::host_name() : config.node.name;
  InitLogging(std::move(options));
}

absl::Status Serve(const Arguments& arguments, RouterConfig config, ShutdownSignal& shutdown) {
  BATON_ASSIGN_OR_RETURN(const auto directory,
                         StaticDirectory::Create(config.nodes.decode, config.nodes.prefill));
  MetricRegistry registry;
  BATON_ASSIGN_OR_RETURN(const auto router, Router::Create(config, *directory, registry));
  BATON_ASSIGN_OR_RETURN(const ApiKeys keys, ApiKeys::Create(config.auth.keys));
  InferenceService inference(*router, keys);
  OpenAiService openai(*router, registry);
  openai.SetApiKeys(keys);
  BATON_ASSIGN_OR_RETURN(const auto rpc,
                         RpcServer::Start(ToRpcServerOptions(config.rpc), {&inference}));
  HttpServerOptions http_options = ToHttpServerOptions(config.http);
  http_options.error_response = OpenAiService::ErrorFor;
  BATON_ASSIGN_OR_RETURN(
      const auto http, HttpServer::Start(http_options, [&openai](HttpRequest request,
                                                                 std::shared_ptr<HttpReply> reply) {
        openai.Handle(std::move(request), std::move(reply));
      }));
  rpc->SetServing("", true);
  rpc->SetServing(kServiceName, true);
  if (!arguments.ports_file.empty()) {
    BATON_RETURN_IF_ERROR(WritePorts(arguments.ports_file, rpc->port(), http->port()));
  }
  BATON_LOG_INFO("ready: gRPC on {}, HTTP on {}:{}, message limit {} bytes", rpc->address(),
                 config.http.bind, http->port(), config.rpc.max_message_bytes);
  shutdown.OnHup([&arguments, &config] {
    const absl::Status status =
        config::ReloadFile(RouterSection(), arguments.config, LoadOptionsOf(arguments), config);
    if (status.ok()) SetLogLevel(config.log.level);
  });
  const int signal = shutdown.Wait();
  shutdown.OnHup(nullptr);
  const absl::Duration timeout = absl::FromChrono(config.shutdown.drain_timeout);
  BATON_LOG_INFO("signal {}: draining {} generations, at most {}", signal, router->inflight(),
                 absl::FormatDuration(timeout));
  rpc->SetServing("", false);
  rpc->SetServing(kServiceName, false);
  router->StartDraining();
  openai.StartDraining();
  const absl::Time end = absl::Now() + timeout;
  http->Drain(timeout);
  rpc->Drain(std::max(absl::ZeroDuration(), end - absl::Now()));
  BATON_LOG_INFO("stopped");
  return absl::OkStatus();
}

int Fail(const absl::Status& status, int code) {
  std::fprintf(stderr, "baton-router: %s\n", std::string(status.message()).c_str());
  return code;
}

int Run(const Arguments& arguments) {
  absl::StatusOr<RouterConfig> config =
      config::LoadFile(RouterSection(), arguments.config, LoadOptionsOf(arguments));
  if (!config.ok()) return Fail(config.status(), 2);
  if (arguments.check) {
    std::printf("%s", config::PrintEffective(RouterSection(), *config).c_str());
    return 0;
  }
  // Before any thread starts, so that all of them block the signals.
  auto shutdown = ShutdownSignal::Install();
  if (!shutdown.ok()) return Fail(shutdown.status(), 1);
  SetUpLogging(*config);
  BATON_LOG_INFO("baton-router {}", Version());
  LogLines(LogLevel::kInfo, "config: ", config::PrintEffective(RouterSection(), *config));
  const absl::Status status = Serve(arguments, *std::move(config), **shutdown);
  if (!status.ok()) return Fail(status, 1);
  return 0;
}

}  // namespace
}  // namespace baton

int main(int argc, char** argv) {
  CLI::App app("The public API of a Baton cluster: gRPC and OpenAI-compatible HTTP.",
               "baton-router");
  baton::Arguments arguments;
  app.add_option("--config", arguments.config, "configuration file (YAML)")->required();
  app.add_option("--set", arguments.sets, "override one key: --set http.port=8080")
      ->allow_extra_args(false);
  app.add_option("--ports-file", arguments.ports_file,
                 "write the ports listened on to this file as JSON when ready");
  app.add_flag("--check", arguments.check, "check the configuration, print what is in force, exit");
  app.set_version_flag("--version", "baton-router " + std::string(baton::Version()));
  CLI11_PARSE(app, argc, argv);
  return baton::Run(arguments);
}
