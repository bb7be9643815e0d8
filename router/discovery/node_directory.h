// Who belongs to the cluster. An entry says that a node is meant to exist, not that it answers.
#pragma once

#include <compare>
#include <string>
#include <string_view>
#include <vector>

namespace baton {

enum class NodeRole { kDecode, kPrefill };
inline std::string_view NodeRoleName(NodeRole role) {
  return role == NodeRole::kDecode ? "decode" : "prefill";
}

struct NodeEntry {
  std::string address;  // "host:port" of the node's gRPC server
  NodeRole role = NodeRole::kDecode;

  friend auto operator<=>(const NodeEntry&, const NodeEntry&) = default;
};

// Thread-safe.
class NodeDirectory {
 public:
  virtual ~NodeDirectory() = default;

  // The members now, each once, in a stable order. Never blocks: an implementation that watches a
  // remote store returns the last state it knew.
  virtual std::vector<NodeEntry> Snapshot() const = 0;
};

}  // namespace baton
