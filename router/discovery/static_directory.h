// The members named in the configuration; they never change.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "router/discovery/node_directory.h"

namespace baton {

// Ok for "host:port", "[v6]:port" with a port in [1, 65535]; INVALID_ARGUMENT says what is wrong.
absl::Status CheckNodeAddress(const std::string& address);

class StaticDirectory final : public NodeDirectory {
 public:
  // INVALID_ARGUMENT names an address that is malformed or listed twice in one role. Empty lists
  // are allowed.
  static absl::StatusOr<std::unique_ptr<StaticDirectory>> Create(
      const std::vector<std::string>& decode, const std::vector<std::string>& prefill);

  std::vector<NodeEntry> Snapshot() const override { return entries_; }

 private:
  explicit StaticDirectory(std::vector<NodeEntry> entries) : entries_(std::move(entries)) {}
  const std::vector<NodeEntry> entries_;
};

}  // namespace baton
