#include "common/config/overrides.h"

#include <utility>
#include <vector>

#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace baton::config {
namespace {

struct Step {
  std::string key;
  std::optional<size_t> index;
};

absl::Status Bad(std::string_view assignment, std::string_view message) {
  return absl::InvalidArgumentError(fmt::format("--set {}: {}", assignment, message));
}

// "a.b[0].c".
absl::StatusOr<std::vector<Step>> ParsePath(std::string_view path, std::string_view assignment) {
  std::vector<Step> steps;
  while (true) {
    const size_t dot = path.find('.');
    std::string_view word = path.substr(0, dot);
    Step step;
    const size_t bracket = word.find('[');
    if (bracket != std::string_view::npos) {
      const std::string_view number = word.substr(bracket + 1);
      const absl::StatusOr<int64_t> index =
          number.ends_with(']') ? ParseInt(number.substr(0, number.size() - 1))
                                : absl::StatusOr<int64_t>(absl::InvalidArgumentError(""));
      if (!index.ok() || *index < 0) return Bad(assignment, "an index is written key[0]");
      step.index = static_cast<size_t>(*index);
      word = word.substr(0, bracket);
    }
    if (word.empty()) return Bad(assignment, "expected key=value, such as log.level=debug");
    step.key = word;
    steps.push_back(std::move(step));
    if (dot == std::string_view::npos) return steps;
    path.remove_prefix(dot + 1);
  }
}

void SetOrigin(YamlNode& node, const std::string& origin) {
  node.origin = origin;
  node.line = 0;
  for (YamlNode& item : node.items) SetOrigin(item, origin);
  for (YamlNode::Entry& entry : node.entries) SetOrigin(entry.value, origin);
}

// A scalar's text is taken as it stands (so "a: b" or "#x" need no quotes); quotes are resolved.
absl::StatusOr<YamlNode> ParseValue(const FieldSpec& field, bool whole_list, std::string_view text,
                                    const std::string& origin) {
  YamlNode node;
  const bool compound = field.type == FieldType::kSection || whole_list;
  const bool quoted = !text.empty() && (text[0] == '"' || text[0] == '\'');
  if (text.empty() || text == "null" || text == "~") {
    node.kind = YamlNode::Kind::kNull;
  } else if (compound || quoted) {
    absl::StatusOr<YamlNode> parsed = ParseYaml(text, origin);
    if (!parsed.ok()) return parsed.status();
    node = *std::move(parsed);
  } else {
    node.kind = YamlNode::Kind::kScalar;
    node.scalar = text;
  }
  SetOrigin(node, origin);
  return node;
}

YamlNode& Child(YamlNode& map, const std::string& key, int line) {
  for (YamlNode::Entry& entry : map.entries) {
    if (entry.key == key) return entry.value;
  }
  return map.entries.emplace_back(YamlNode::Entry{key, line, YamlNode()}).value;
}

const FieldSpec* FindField(const SectionSpec& section, const std::string& key) {
  for (const FieldSpec& field : section.fields) {
    if (field.key == key) return &field;
  }
  return nullptr;
}

// Makes an absent node a container; false when it is something else already.
bool MakeKind(YamlNode& node, YamlNode::Kind kind, const std::string& origin) {
  if (node.kind == YamlNode::Kind::kNull) {
    node.kind = kind;
    node.origin = origin;
  }
  return node.kind == kind;
}

void ApplyEnvironmentTo(const SectionSpec& section, const EnvLookup& env, YamlNode& node) {
  for (const FieldSpec& field : section.fields) {
    if (field.type == FieldType::kSection) {
      const bool present = node.Find(field.key) != nullptr;
      YamlNode scratch;
      scratch.kind = YamlNode::Kind::kMap;
      YamlNode& child = present ? Child(node, field.key, 0) : scratch;
      if (child.kind == YamlNode::Kind::kNull) child.kind = YamlNode::Kind::kMap;
      if (child.kind != YamlNode::Kind::kMap) continue;  // reported when the file is read
      ApplyEnvironmentTo(*field.section, env, child);
      if (!present && !scratch.entries.empty()) {
        Child(node, field.key, node.line) = std::move(scratch);
      }
      continue;
    }
    if (field.env.empty()) continue;
    const std::optional<std::string> text = env(field.env);
    if (!text || text->empty()) continue;
    YamlNode value;
    value.kind = YamlNode::Kind::kScalar;
    value.scalar = *text;
    value.origin = "environment variable " + field.env;
    Child(node, field.key, node.line) = std::move(value);
  }
}

}  // namespace

void ApplyEnvironment(const SectionSpec& section, const EnvLookup& env, YamlNode& root) {
  ApplyEnvironmentTo(section, env, root);
}

absl::Status ApplySet(const SectionSpec& section, const std::string& assignment, YamlNode& root) {
  const size_t equals = assignment.find('=');
  if (equals == std::string::npos) {
    return Bad(assignment, "expected key=value, such as log.level=debug");
  }
  BATON_ASSIGN_OR_RETURN(const std::vector<Step> steps,
                         ParsePath(std::string_view(assignment).substr(0, equals), assignment));
  const std::string origin = "--set " + assignment.substr(0, equals);
  const SectionSpec* current = &section;
  YamlNode* node = &root;
  for (size_t i = 0; i < steps.size(); ++i) {
    const Step& step = steps[i];
    const FieldSpec* field = FindField(*current, step.key);
    if (field == nullptr) {
      std::vector<std::string> keys;
      for (const FieldSpec& known : current->fields) keys.push_back(known.key);
      const std::string near = Suggest(step.key, keys);
      return Bad(assignment,
                 fmt::format("unknown key '{}'{}", step.key,
                             near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
    }
    const bool last = i + 1 == steps.size();
    const bool list =
        field->type == FieldType::kSectionList || field->type == FieldType::kStringList;
    if (step.index && !list) return Bad(assignment, fmt::format("'{}' is no list", step.key));
    node = &Child(*node, step.key, node->line);
    if (step.index) {
      if (!MakeKind(*node, YamlNode::Kind::kSequence, origin) || *step.index > node->items.size()) {
        return Bad(assignment, fmt::format("'{}' has {} items; the next index is {}", step.key,
                                           node->items.size(), node->items.size()));
      }
      if (*step.index == node->items.size()) node->items.emplace_back();
      node = &node->items[*step.index];
    }
    if (last) {
      const bool compound = step.index ? field->type == FieldType::kSectionList : list;
      BATON_ASSIGN_OR_RETURN(
          *node,
          ParseValue(*field, compound, std::string_view(assignment).substr(equals + 1), origin));
      return absl::OkStatus();
    }
    if (field->section == nullptr || (list && !step.index)) {
      return Bad(assignment, fmt::format("'{}' has no keys below it{}", step.key,
                                         field->section ? "; write an index: key[0]" : ""));
    }
    if (!MakeKind(*node, YamlNode::Kind::kMap, origin)) {
      return Bad(assignment, fmt::format("'{}' is {} in the file", step.key, node->KindName()));
    }
    current = field->section.get();
  }
  return absl::OkStatus();
}

}  // namespace baton::config
