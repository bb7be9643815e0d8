// `baton up`: prefill, decode and router nodes from one YAML, supervised.
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/signals.h"
#include "common/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "tools/commands.h"
#include "tools/inference_client.h"
#include "tools/supervisor.h"
#include "tools/up_file.h"
#include "yaml-cpp/yaml.h"

namespace baton::tools {
namespace {

struct UpOptions {
  std::string config;
  std::string ports_file;
  int start_timeout_s = 120;
  int drain_timeout_s = 35;
};

// A private folder for the generated files, removed at the end.
class ScratchDir {
 public:
  static absl::StatusOr<ScratchDir> Create() {
    std::string path = (std::filesystem::temp_directory_path() / "baton-up-XXXXXX").string();
    if (mkdtemp(path.data()) == nullptr) {
      return absl::InternalError(absl::StrCat("cannot create a folder like ", path));
    }
    return ScratchDir(path);
  }
  ScratchDir(ScratchDir&& other) noexcept : path_(std::exchange(other.path_, "")) {}
  ~ScratchDir() {
    std::error_code ignored;
    if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
  }
  std::string File(const std::string& name) const { return path_ + "/" + name; }

 private:
  explicit ScratchDir(std::string path) : path_(std::move(path)) {}
  std::string path_;
};

absl::StatusOr<std::string> ProgramPath(const std::string& program) {
  std::error_code error;
  const auto self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return absl::InternalError("cannot read /proc/self/exe");
  return (self.parent_path() / program).string();
}

struct Ports {
  int grpc = 0;
  int http = 0;
};

absl::StatusOr<Ports> WaitForPorts(const std::string& file, const std::string& name,
                                   Supervisor& supervisor, ShutdownSignal& shutdown,
                                   std::chrono::seconds timeout) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (std::chrono::steady_clock::now() < deadline) {
    std::ifstream in(file);
    const auto json = nlohmann::json::parse(in, nullptr, false);
    if (json.is_object()) return Ports{json.value("grpc", 0), json.value("http", 0)};
    if (shutdown.WaitFor(std::chrono::milliseconds(50))) return absl::CancelledError("interrupted");
    BATON_RETURN_IF_ERROR(supervisor.Poll());
    if (!supervisor.Running(name)) {
      return absl::FailedPreconditionError(
          absl::StrCat(name, " did not start: see its lines above"));
    }
  }
  return absl::DeadlineExceededError(
      absl::StrCat(name, " was not ready after ", timeout.count(), " s (--start-timeout)"));
}

class Up {
 public:
  Up(UpOptions options, ScratchDir scratch, std::unique_ptr<ShutdownSignal> shutdown)
      : options_(std::move(options)),
        scratch_(std::move(scratch)),
        shutdown_(std::move(shutdown)) {}

  absl::Status Run() {
    BATON_ASSIGN_OR_RETURN(std::vector<NodeFile> nodes, ReadUpFile(options_.config));
    Ports router;
    for (NodeFile& node : nodes) {
      if (node.role == "router") PointAtNodes(node);
      BATON_ASSIGN_OR_RETURN(const Ports ports, StartNode(node));
      if (node.role != "router") continue;
      router = ports;
      BATON_RETURN_IF_ERROR(WaitForModel(node, ports));
    }
    BATON_RETURN_IF_ERROR(Announce(router));
    while (!shutdown_->WaitFor(std::chrono::milliseconds(200))) {
      BATON_RETURN_IF_ERROR(supervisor_.Poll());
    }
    std::cerr << "[up] stopping\n";
    return absl::OkStatus();
  }

  void Stop() { supervisor_.StopAll(std::chrono::seconds(options_.drain_timeout_s)); }

 private:
  // The router's node list is filled in unless the file gives one.
  void PointAtNodes(NodeFile& router) {
    if (router.yaml["nodes"]) return;
    for (const auto& address : decode_) router.yaml["nodes"]["decode"].push_back(address);
    for (const auto& address : prefill_) router.yaml["nodes"]["prefill"].push_back(address);
  }

  absl::StatusOr<Ports> StartNode(NodeFile& node) {
    if (!node.yaml["node"] || !node.yaml["node"]["name"]) node.yaml["node"]["name"] = node.name;
    const std::string config = scratch_.File(node.name + ".yaml");
    const std::string ports = scratch_.File(node.name + ".ports.json");
    std::ofstream(config) << node.yaml << "\n";
    BATON_ASSIGN_OR_RETURN(const std::string program, ProgramPath("baton-" + node.role));
    BATON_RETURN_IF_ERROR(
        supervisor_.Start({node.name, {program, "--config", config, "--ports-file", ports}}));
    BATON_ASSIGN_OR_RETURN(const Ports got,
                           WaitForPorts(ports, node.name, supervisor_, *shutdown_,
                                        std::chrono::seconds(options_.start_timeout_s)));
    // A restarted child must come back where the others look for it.
    node.yaml["rpc"]["port"] = got.grpc;
    node.yaml["http"]["port"] = got.http;
    std::ofstream(config) << node.yaml << "\n";
    const std::string address = absl::StrCat(Host(node), ":", got.grpc);
    if (node.role == "decode") decode_.push_back(address);
    if (node.role == "prefill") prefill_.push_back(address);
    return got;
  }

  // The router listens before a decode node has answered it; a client would be told UNAVAILABLE.
  absl::Status WaitForModel(const NodeFile& router, const Ports& ports) {
    if (router.yaml["rpc"]["tls"]) return absl::OkStatus();  // `up` has no certificate to show
    const char* key = std::getenv(kApiKeyVariable);
    BATON_ASSIGN_OR_RETURN(const auto client,
                           InferenceClient::Connect(absl::StrCat(Host(router), ":", ports.grpc),
                                                    key == nullptr ? "" : key));
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::seconds(options_.start_timeout_s);
    while (std::chrono::steady_clock::now() < deadline) {
      const auto listed = client->ListModels();
      if (absl::IsUnauthenticated(listed.status())) return absl::OkStatus();  // no key to ask with
      for (int i = 0; listed.ok() && i < listed->models_size(); ++i) {
        if (listed->models(i).ready()) return absl::OkStatus();
      }
      if (shutdown_->WaitFor(std::chrono::milliseconds(50))) {
        return absl::CancelledError("interrupted");
      }
      BATON_RETURN_IF_ERROR(supervisor_.Poll());
    }
    return absl::DeadlineExceededError(absl::StrCat(
        "the router saw no ready model within ", options_.start_timeout_s, " s (--start-timeout)"));
  }

  static std::string Host(const NodeFile& node) {
    const YAML::Node rpc = node.yaml["rpc"];
    std::string host = rpc && rpc["bind"] ? rpc["bind"].as<std::string>() : "127.0.0.1";
    if (host == "0.0.0.0") return "127.0.0.1";
    if (host == "::") return "[::1]";
    return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]") : host;
  }

  absl::Status Announce(const Ports& router) {
    std::cerr << "[up] ready: gRPC on port " << router.grpc << ", OpenAI-style HTTP on port "
              << router.http << "\n"
              << "[up] try: baton chat --router 127.0.0.1:" << router.grpc << "\n";
    if (options_.ports_file.empty()) return absl::OkStatus();
    // Written aside and renamed: a reader never sees half a file.
    const std::string aside = options_.ports_file + ".new";
    std::ofstream(aside) << nlohmann::json{{"grpc", router.grpc}, {"http", router.http}}.dump()
                         << "\n";
    std::error_code error;
    std::filesystem::rename(aside, options_.ports_file, error);
    if (error) return absl::InternalError(absl::StrCat("cannot write ", options_.ports_file));
    return absl::OkStatus();
  }

  const UpOptions options_;
  const ScratchDir scratch_;
  const std::unique_ptr<ShutdownSignal> shutdown_;
  Supervisor supervisor_;
  std::vector<std::string> decode_;
  std::vector<std::string> prefill_;
};

int RunUp(const UpOptions& options) {
  auto shutdown = ShutdownSignal::Install();
  if (!shutdown.ok()) {
    std::cerr << "baton: " << shutdown.status().message() << "\n";
    return 1;
  }
  auto scratch = ScratchDir::Create();
  if (!scratch.ok()) {
    std::cerr << "baton: " << scratch.status().message() << "\n";
    return 1;
  }
  Up up(options, *std::move(scratch), *std::move(shutdown));
  const absl::Status status = up.Run();
  up.Stop();
  if (status.ok()) return 0;
  std::cerr << "baton: " << status.message() << "\n";
  return absl::IsInvalidArgument(status) ? 2 : 1;
}

}  // namespace

void AddUpCommand(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<UpOptions>();
  CLI::App* cmd =
      app.add_subcommand("up", "run prefill, decode and router nodes on this host from one YAML");
  cmd->add_option("config", options->config, "YAML with the keys prefill, decode and router")
      ->required();
  cmd->add_option("--ports-file", options->ports_file,
                  "write the router's ports to this file as JSON when ready");
  cmd->add_option("--start-timeout", options->start_timeout_s,
                  "seconds a node may take to be ready")
      ->capture_default_str()
      ->check(CLI::Range(1, 3600));
  cmd->add_option("--drain-timeout", options->drain_timeout_s, "seconds to wait for nodes to drain")
      ->capture_default_str()
      ->check(CLI::Range(0, 3600));
  cmd->callback([options, &exit_code] { exit_code = RunUp(*options); });
}

}  // namespace baton::tools
