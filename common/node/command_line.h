// The command line that both nodes' daemons share, and the small things around it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace baton {

struct CommandLine {
  std::string config_path;
  std::vector<std::string> sets;  // --set key=value, in order
  bool check = false;             // read the config, say whether it is good, exit
  std::string ports_file;         // empty: none
  // What the process must exit with now (help, version, a wrong option); -1: go on.
  int exit_code = -1;
};

// Prints help, version and errors itself.
CommandLine ParseCommandLine(int argc, const char* const* argv, const std::string& name,
                             const std::string& description);

// Writes {"grpc": …, "http": …} through a temporary file and a rename, so that a reader never sees
// half of it.
absl::Status WritePortsFile(const std::string& path, int grpc_port, int http_port);

// The address told to peers: `advertise` with the port added when it has none; empty: bind and port
// (the host's name for a bind to every address).
std::string AdvertisedAddress(const std::string& advertise, const std::string& bind, int port);

// `name` of the config, or the host's.
std::string NodeName(const std::string& configured);

}  // namespace baton
