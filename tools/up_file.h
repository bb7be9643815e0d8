// The one file `baton up` runs a host from: the keys prefill, decode and router, each with a node's
// settings or a list of them.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "yaml-cpp/yaml.h"

namespace baton::tools {

struct NodeFile {
  std::string name;  // "prefill", "decode-1", ...: unless the settings name the node
  std::string role;  // "prefill", "decode", "router"
  YAML::Node yaml;   // what the daemon's own file would hold
};

// In the order to start them. Each node's settings are checked as its daemon would;
// INVALID_ARGUMENT has every error, one a line, with the line of `path` (also for a file that
// cannot be read).
absl::StatusOr<std::vector<NodeFile>> ReadUpFile(const std::string& path);

}  // namespace baton::tools
