#include "router/discovery/static_directory.h"

#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace baton {

absl::Status CheckNodeAddress(const std::string& address) {
  const size_t colon = address.rfind(':');
  const std::string host = colon == std::string::npos ? address : address.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  int port = 0;
  if (colon == std::string::npos || host.empty() ||
      (!bracketed && host.find(':') != std::string::npos) ||
      !absl::SimpleAtoi(address.substr(colon + 1), &port)) {
    return absl::InvalidArgumentError(
        Cat("node address '", address, "' is not host:port or [ipv6]:port"));
  }
  if (port < 1 || port > 65535) {
    return absl::InvalidArgumentError(
        Cat("node address '", address, "': port ", port, " is not in 1..65535"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<StaticDirectory>> StaticDirectory::Create(
    const std::vector<std::string>& decode, const std::vector<std::string>& prefill) {
  std::vector<NodeEntry> entries;
  std::set<NodeEntry> seen;
  const auto add = [&](const std::vector<std::string>& list, NodeRole role) -> absl::Status {
    for (const std::string& address : list) {
      BATON_RETURN_IF_ERROR(CheckNodeAddress(address));
      NodeEntry entry{address, role};
      if (!seen.insert(entry).second) {
        return absl::InvalidArgumentError(
            Cat("node address '", address, "' is listed twice under ", NodeRoleName(role)));
      }
      entries.push_back(std::move(entry));
    }
    return absl::OkStatus();
  };
  BATON_RETURN_IF_ERROR(add(decode, NodeRole::kDecode));
  BATON_RETURN_IF_ERROR(add(prefill, NodeRole::kPrefill));
  return std::unique_ptr<StaticDirectory>(new StaticDirectory(std::move(entries)));
}

}  // namespace baton
