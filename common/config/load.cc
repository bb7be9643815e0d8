#include "common/config/load.h"

#include <cerrno>
#include <cstdlib>
#include <fstream>
#include <set>
#include <system_error>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/config/field_value.h"
#include "common/config/overrides.h"
#include "common/config/yaml_tree.h"

namespace baton::config {
namespace {

std::vector<std::string> Keys(const SectionSpec& section) {
  std::vector<std::string> keys;
  for (const FieldSpec& field : section.fields) keys.push_back(field.key);
  return keys;
}

const FieldSpec* FindField(const SectionSpec& section, std::string_view key) {
  for (const FieldSpec& field : section.fields) {
    if (field.key == key) return &field;
  }
  return nullptr;
}

// Fills one object from a tree and collects every error on the way.
class Loader {
 public:
  Loader(std::string_view file_name, const EnvLookup& env) : file_name_(file_name), env_(env) {}

  void LoadSection(const SectionSpec& section, const YamlNode& node, const std::string& path,
                   void* object);
  void Error(const YamlNode& node, int line, std::string_view path, std::string_view message);
  absl::Status Finish() const;

 private:
  void CheckKeys(const SectionSpec& section, const YamlNode& node, const std::string& path);
  void LoadField(const FieldSpec& field, const YamlNode& node, int line, const std::string& path,
                 void* object);
  void LoadList(const FieldSpec& field, const YamlNode& node, int line, const std::string& path,
                void* object);

  const std::string file_name_;
  const EnvLookup& env_;
  std::vector<std::string> errors_;
};

void Loader::Error(const YamlNode& node, int line, std::string_view path,
                   std::string_view message) {
  const std::string where =
      node.origin.empty() ? fmt::format("{}:{}", file_name_, line) : node.origin;
  errors_.push_back(path.empty() ? fmt::format("{}: {}", where, message)
                                 : fmt::format("{}: {}: {}", where, path, message));
}

absl::Status Loader::Finish() const {
  if (errors_.empty()) return absl::OkStatus();
  std::string all;
  for (const std::string& error : errors_) all += (all.empty() ? "" : "\n") + error;
  return absl::InvalidArgumentError(all);
}

std::string Join(const std::string& path, std::string_view key) {
  return path.empty() ? std::string(key) : fmt::format("{}.{}", path, key);
}

void Loader::CheckKeys(const SectionSpec& section, const YamlNode& node, const std::string& path) {
  std::set<std::string> seen;
  for (const YamlNode::Entry& entry : node.entries) {
    if (FindField(section, entry.key) == nullptr) {
      const std::string near = Suggest(entry.key, Keys(section));
      Error(entry.value, entry.line, Join(path, entry.key),
            near.empty() ? "unknown key" : fmt::format("unknown key; did you mean '{}'?", near));
    } else if (!seen.insert(entry.key).second) {
      Error(entry.value, entry.line, Join(path, entry.key), "is given more than once");
    }
  }
}

void Loader::LoadSection(const SectionSpec& section, const YamlNode& node, const std::string& path,
                         void* object) {
  const size_t errors_before = errors_.size();
  CheckKeys(section, node, path);
  static const YamlNode kAbsent;
  for (const FieldSpec& field : section.fields) {
    const YamlNode* value = &kAbsent;
    int line = node.line;
    bool present = false;
    for (const YamlNode::Entry& entry : node.entries) {
      if (entry.key != field.key) continue;
      value = &entry.value;
      line = entry.line;
      present = true;
      break;
    }
    const std::string field_path = Join(path, field.key);
    if (value->kind == YamlNode::Kind::kNull && field.required) {
      Error(present ? *value : node, line, field_path,
            present ? "is required but null" : "is required but missing");
    } else if (present || field.type == FieldType::kSection || field.min_size > 0) {
      LoadField(field, *value, line, field_path, object);
    }
  }
  if (errors_.size() != errors_before) return;
  for (const auto& check : section.checks) {
    const absl::Status status = check(object);
    if (status.ok()) continue;
    // The message begins with the key it means; then that key's line helps more.
    const std::string_view message = StdView(status.message());
    const std::string_view key = message.substr(0, message.find(':'));
    int line = node.line;
    for (const YamlNode::Entry& entry : node.entries) {
      if (entry.key == key) line = entry.line;
    }
    const bool names_key = FindField(section, key) != nullptr;
    Error(node, line, "",
          names_key      ? Join(path, message)
          : path.empty() ? std::string(message)
                         : fmt::format("{}: {}", path, message));
  }
}

void Loader::LoadField(const FieldSpec& field, const YamlNode& node, int line,
                       const std::string& path, void* object) {
  if (field.type == FieldType::kSection) {
    if (node.kind != YamlNode::Kind::kMap && node.kind != YamlNode::Kind::kNull) {
      Error(node, line, path, fmt::format("expected a mapping, got {}", node.KindName()));
      return;
    }
    YamlNode section = node;
    section.line = line;
    LoadSection(*field.section, section, path, field.sub(object));
    return;
  }
  if (field.type == FieldType::kSectionList) {
    LoadList(field, node, line, path, object);
    return;
  }
  if (node.kind == YamlNode::Kind::kNull) {
    if (field.optional) field.set(object, FieldValue());
    // Otherwise the default stands; it must satisfy the table like any other value.
    const absl::Status status = CheckFieldValue(field, field.get(object));
    if (!status.ok()) Error(node, line, path, StdView(status.message()));
    return;
  }
  absl::StatusOr<FieldValue> value = ParseFieldValue(field, node, env_);
  if (!value.ok()) {
    Error(node, line, path, StdView(value.status().message()));
    return;
  }
  field.set(object, *value);
}

void Loader::LoadList(const FieldSpec& field, const YamlNode& node, int line,
                      const std::string& path, void* object) {
  if (node.kind != YamlNode::Kind::kSequence && node.kind != YamlNode::Kind::kNull) {
    Error(node, line, path, fmt::format("expected a list of mappings, got {}", node.KindName()));
    return;
  }
  if (node.kind == YamlNode::Kind::kSequence) {
    field.clear(object);
    for (size_t i = 0; i < node.items.size(); ++i) {
      const YamlNode& item = node.items[i];
      const std::string item_path = fmt::format("{}[{}]", path, i);
      if (item.kind != YamlNode::Kind::kMap) {
        Error(item, item.line, item_path,
              fmt::format("expected a mapping, got {}", item.KindName()));
        continue;
      }
      LoadSection(*field.section, item, item_path, field.append(object));
    }
  }
  const size_t count = node.items.size();
  if (count < field.min_size || count > field.max_size) {
    Error(node, line, path,
          fmt::format("{} items; allowed: {}", count, AllowedSizes(field, "items")));
  }
}

std::optional<std::string> RealEnv(const std::string& name) {
  const char* value = std::getenv(name.c_str());
  if (value == nullptr) return std::nullopt;
  return value;
}

}  // namespace

namespace load_internal {

absl::Status LoadInto(const SectionSpec& section, std::string_view text, std::string_view file_name,
                      const LoadOptions& options, void* object) {
  BATON_ASSIGN_OR_RETURN(YamlNode root, ParseYaml(text, file_name));
  if (root.kind != YamlNode::Kind::kMap) {
    return absl::InvalidArgumentError(fmt::format("{}:{}: expected a mapping of keys, got {}",
                                                  file_name, root.line, root.KindName()));
  }
  const EnvLookup env = options.env ? options.env : EnvLookup(RealEnv);
  std::vector<std::string> errors;
  ApplyEnvironment(section, env, root);
  for (const std::string& set : options.sets) {
    absl::Status status = ApplySet(section, set, root);
    if (!status.ok()) errors.emplace_back(StdView(status.message()));
  }
  Loader loader(file_name, env);
  loader.LoadSection(section, root, "", object);
  absl::Status status = loader.Finish();
  if (errors.empty()) return status;
  std::string all(StdView(status.message()));
  for (const std::string& error : errors) all += (all.empty() ? "" : "\n") + error;
  return absl::InvalidArgumentError(all);
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  std::string text(kMaxConfigBytes + 1, '\0');
  if (in) in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in.is_open() || in.bad() || (in.fail() && !in.eof())) {
    const std::string message =
        fmt::format("{}: {}", path, std::error_code(errno, std::generic_category()).message());
    if (errno == EACCES) return absl::PermissionDeniedError(message);
    if (errno == ENOENT) return absl::NotFoundError(message);
    return absl::InvalidArgumentError(message);
  }
  text.resize(static_cast<size_t>(in.gcount()));
  return text;
}

}  // namespace load_internal
}  // namespace baton::config
