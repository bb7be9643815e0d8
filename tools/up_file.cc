#include "tools/up_file.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/status_macros.h"
#include "common/config/load.h"
#include "decode_node/serve/decode_config.h"
#include "prefill_node/prefill_config.h"
#include "router/route/router_config.h"

namespace baton::tools {
namespace {

constexpr const char* kRoles[] = {"prefill", "decode", "router"};  // in the order to start them

// Adds `role`'s nodes: one mapping, or a list of mappings.
absl::Status AddNodes(const YAML::Node& section, const std::string& role,
                      std::vector<NodeFile>& out) {
  if (section.IsMap()) {
    out.push_back({role, role, section});
    return absl::OkStatus();
  }
  if (!section.IsSequence()) {
    return absl::InvalidArgumentError(
        absl::StrCat(role, ": give one node's settings, or a list of them"));
  }
  for (std::size_t i = 0; i < section.size(); ++i) {
    if (!section[i].IsMap()) {
      return absl::InvalidArgumentError(absl::StrCat(role, "[", i, "]: give one node's settings"));
    }
    out.push_back({absl::StrCat(role, "-", i + 1), role, section[i]});
  }
  return absl::OkStatus();
}

// The lines of `text` from `node` to its first line that is indented less, all else blank: a file
// of the node's own whose lines have the numbers of the whole.
std::string OwnText(const std::vector<std::string>& text, const YAML::Node& node) {
  const auto first = static_cast<std::size_t>(std::max(node.Mark().line, 0));
  const auto column = static_cast<std::size_t>(std::max(node.Mark().column, 0));
  std::string out(first, '\n');
  for (std::size_t i = first; i < text.size(); ++i) {
    std::string line = text[i];
    const std::size_t start = line.find_first_not_of(' ');
    const bool blank = start == std::string::npos || line[start] == '#';
    if (i > first && !blank && start < column) break;
    if (i == first) std::fill_n(line.begin(), std::min(column, line.size()), ' ');
    out += line + "\n";
  }
  return out;
}

template <typename T>
absl::Status CheckAs(const config::Section<T>& section, const std::string& text,
                     const std::string& path, config::LoadOptions options = {}) {
  return config::Parse(section, text, path, options).status();
}

absl::Status CheckNode(const NodeFile& node, const std::vector<std::string>& lines,
                       const std::string& path) {
  // A flow mapping ends in the middle of a line: its text is written anew, on its first line.
  const bool flow = node.yaml.Style() == YAML::EmitterStyle::Flow;
  const auto above = static_cast<std::size_t>(std::max(node.yaml.Mark().line, 0));
  const std::string text =
      flow ? std::string(above, '\n') + YAML::Dump(node.yaml) : OwnText(lines, node.yaml);
  if (node.role == "prefill") return CheckAs(PrefillSection(), text, path);
  if (node.role == "decode") return CheckAs(DecodeSection(), text, path);
  config::LoadOptions options;
  // `up` fills in the nodes it started.
  if (!node.yaml["nodes"]) options.sets = {"nodes.decode=[127.0.0.1:1]"};
  return CheckAs(RouterSection(), text, path, std::move(options));
}

absl::StatusOr<std::vector<NodeFile>> ReadNodes(const std::string& text, const std::string& path) {
  std::vector<NodeFile> nodes;
  try {
    const YAML::Node root = YAML::Load(text);
    if (!root.IsMap()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": expected the keys prefill, decode and router"));
    }
    for (const auto& entry : root) {
      const auto key = entry.first.as<std::string>();
      if (std::find(std::begin(kRoles), std::end(kRoles), key) == std::end(kRoles)) {
        return absl::InvalidArgumentError(absl::StrCat(path, ":", entry.first.Mark().line + 1,
                                                       ": unknown key '", key,
                                                       "'; allowed: prefill, decode, router"));
      }
    }
    for (const char* role : kRoles) {
      const YAML::Node section = root[role];
      if (!section) continue;
      const absl::Status status = AddNodes(section, role, nodes);
      if (!status.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ":", section.Mark().line + 1, ": ", status.message()));
      }
    }
  } catch (const YAML::Exception& e) {
    return absl::InvalidArgumentError(absl::StrCat(path, ":", e.mark.line + 1, ": ", e.msg));
  }
  return nodes;
}

}  // namespace

absl::StatusOr<std::vector<NodeFile>> ReadUpFile(const std::string& path) {
  std::ifstream in(path);
  const std::string text(std::istreambuf_iterator<char>(in), {});
  if (!in) return absl::InvalidArgumentError(absl::StrCat(path, ": ", std::strerror(errno)));
  BATON_ASSIGN_OR_RETURN(std::vector<NodeFile> nodes, ReadNodes(text, path));
  const auto count = [&](const char* role) {
    return std::count_if(nodes.begin(), nodes.end(), [&](const auto& n) { return n.role == role; });
  };
  if (count("decode") == 0)
    return absl::InvalidArgumentError(absl::StrCat(path, ": no 'decode' node"));
  if (count("router") != 1) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": needs exactly one 'router'"));
  }
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  std::vector<std::string> errors;
  for (const NodeFile& node : nodes) {
    const absl::Status status = CheckNode(node, lines, path);
    if (!status.ok()) errors.emplace_back(status.message());
  }
  if (!errors.empty()) return absl::InvalidArgumentError(absl::StrJoin(errors, "\n"));
  return nodes;
}

}  // namespace baton::tools
