#include "common/node/command_line.h"

#include <unistd.h>

#include <CLI/CLI.hpp>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/logging.h"
#include "common/base/replace_file.h"
#include "common/base/version.h"

namespace baton {

CommandLine ParseCommandLine(int argc, const char* const* argv, const std::string& name,
                             const std::string& description) {
  CommandLine line;
  CLI::App app(description, name);
  app.add_option("--config", line.config_path, "YAML file")->required()->type_name("FILE");
  app.add_option("--set", line.sets, "override a config field, e.g. --set rpc.port=7001")
      ->type_name("KEY=VALUE")
      ->allow_extra_args(false);
  app.add_flag("--check", line.check, "check the config file and exit");
  app.add_option("--ports-file", line.ports_file, "write the listening ports here as JSON")
      ->type_name("FILE");
  app.set_version_flag("--version", absl::StrCat(name, " ", std::string(Version())));
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    line.exit_code = app.exit(e) == 0 ? 0 : 2;
  }
  return line;
}

absl::Status WritePortsFile(const std::string& path, int grpc_port, int http_port) {
  absl::Status written =
      ReplaceFile(path, absl::StrCat("{\"grpc\": ", grpc_port, ", \"http\": ", http_port, "}\n"),
                  {.sync = false});
  if (written.ok()) return written;
  return absl::UnavailableError(absl::StrCat("--ports-file: ", written.message()));
}

namespace {
std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "localhost";
}

bool HasPort(const std::string& address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return false;
  // A bare IPv6 address has several colons and no brackets.
  return address.front() == '[' ? address[colon - 1] == ']' : address.find(':') == colon;
}
}  // namespace

std::string AdvertisedAddress(const std::string& advertise, const std::string& bind, int port) {
  std::string host = advertise;
  if (host.empty()) host = bind == "0.0.0.0" || bind == "::" ? HostName() : bind;
  if (HasPort(host)) return host;
  if (absl::StrContains(host, ':') && host.front() != '[') host = absl::StrCat("[", host, "]");
  return absl::StrCat(host, ":", port);
}

std::string NodeName(const std::string& configured) {
  return configured.empty() ? HostName() : configured;
}

}  // namespace baton
