// A YAML 1.2 document as a tree that knows lines, quoting and duplicate keys. Bounded: no anchors
// or aliases, one document, limits on size, depth and nodes. yaml-cpp's exceptions end here.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::config {

inline constexpr size_t kMaxConfigBytes = 1u << 20;
inline constexpr int kMaxConfigDepth = 32;
inline constexpr size_t kMaxConfigNodes = 100'000;

struct YamlNode {
  enum class Kind { kNull, kScalar, kSequence, kMap };
  struct Entry;

  Kind kind = Kind::kNull;
  bool quoted = false;          // kScalar: written in quotes or as a block scalar
  std::string scalar;           // kScalar: the text, escapes resolved
  std::string tag;              // explicit tag such as "!!int"; empty: none
  int line = 0;                 // 1-based; 0: not from the file (--set, environment)
  std::string origin;           // when line is 0: "--set" or the variable's name
  std::vector<YamlNode> items;  // kSequence
  std::vector<Entry> entries;   // kMap, in file order, duplicates kept

  const YamlNode* Find(std::string_view key) const;  // first entry of that key; null if none
  const char* KindName() const;                      // "a mapping", "a list", ...
};

struct YamlNode::Entry {
  std::string key;
  int line = 0;
  YamlNode value;
};

// Errors are INVALID_ARGUMENT "file:line: message". An empty document is an empty mapping.
absl::StatusOr<YamlNode> ParseYaml(std::string_view text, std::string_view file_name);

}  // namespace baton::config
