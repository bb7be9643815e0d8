#include "common/config/field_value.h"

#include <limits>

#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace baton::config {
namespace {

constexpr int64_t kIntMin = std::numeric_limits<int64_t>::min();
constexpr int64_t kIntMax = std::numeric_limits<int64_t>::max();
constexpr size_t kSizeMax = std::numeric_limits<size_t>::max();

std::string FormatInt(const FieldSpec& field, int64_t value) {
  if (field.type == FieldType::kDuration) return FormatDuration(std::chrono::nanoseconds(value));
  if (field.type == FieldType::kBytes) return FormatBytes(value);
  return std::to_string(value);
}

absl::Status OutOfRange(std::string_view given, const FieldSpec& field) {
  return absl::InvalidArgumentError(
      fmt::format("{} is out of range; allowed: {}", given, Allowed(field)));
}

bool IsEnvName(std::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  for (const char c : name) {
    const bool fine =
        (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_';
    if (!fine) return false;
  }
  return true;
}

// Replaces each ${NAME}, or refuses it where the field does not expand.
absl::StatusOr<std::string> Expand(const FieldSpec& field, std::string_view text,
                                   const EnvLookup& env) {
  std::string out;
  while (true) {
    const size_t open = text.find("${");
    const size_t close = open == std::string_view::npos ? open : text.find('}', open);
    if (close == std::string_view::npos) return out += text;
    const std::string name(text.substr(open + 2, close - open - 2));
    out += text.substr(0, open);
    if (!IsEnvName(name)) {
      out += text.substr(open, close + 1 - open);
    } else if (!field.expand_env) {
      return absl::InvalidArgumentError(
          fmt::format("'${{{}}}': this key does not expand environment variables", name));
    } else {
      const std::optional<std::string> value = env(name);
      if (!value) {
        return absl::InvalidArgumentError(
            fmt::format("'${{{}}}': the environment variable {} is not set", name, name));
      }
      out += *value;
    }
    text.remove_prefix(close + 1);
  }
}

absl::StatusOr<FieldValue> ParseScalar(const FieldSpec& field, const YamlNode& node,
                                       const EnvLookup& env) {
  const std::string& text = node.scalar;
  // Durations and sizes are texts with a unit: "3s" in quotes says the same.
  const bool textual = field.type == FieldType::kString || field.type == FieldType::kEnum ||
                       field.type == FieldType::kDuration || field.type == FieldType::kBytes;
  if (field.optional && !node.quoted && text == "auto") return FieldValue();
  if (node.quoted && !textual) {
    return absl::InvalidArgumentError(
        fmt::format("\"{}\" is quoted text where {} is expected; write it without quotes", text,
                    TypeName(field)));
  }
  switch (field.type) {
    case FieldType::kBool: {
      BATON_ASSIGN_OR_RETURN(const bool value, ParseBool(text));
      return FieldValue(value);
    }
    case FieldType::kInt: {
      BATON_ASSIGN_OR_RETURN(const int64_t value, ParseInt(text));
      return FieldValue(value);
    }
    case FieldType::kBytes: {
      BATON_ASSIGN_OR_RETURN(const int64_t value, ParseBytes(text));
      return FieldValue(value);
    }
    case FieldType::kDuration: {
      BATON_ASSIGN_OR_RETURN(const std::chrono::nanoseconds value, ParseDuration(text));
      if (value.count() % field.unit_ns != 0) {
        return absl::InvalidArgumentError(fmt::format(
            "{} is finer than {}", text, FormatDuration(std::chrono::nanoseconds(field.unit_ns))));
      }
      return FieldValue(int64_t{value.count()});
    }
    case FieldType::kDouble: {
      BATON_ASSIGN_OR_RETURN(const double value, ParseDouble(text));
      return FieldValue(value);
    }
    case FieldType::kEnum:
      for (const std::string& name : field.enum_names) {
        if (name == text) return FieldValue(text);
      }
      {
        const std::string near = Suggest(text, field.enum_names);
        return absl::InvalidArgumentError(
            fmt::format("'{}' is not allowed; allowed: {}{}", text, Allowed(field),
                        near.empty() ? "" : fmt::format("; did you mean '{}'?", near)));
      }
    default: {
      BATON_ASSIGN_OR_RETURN(std::string value, Expand(field, text, env));
      return FieldValue(std::move(value));
    }
  }
}

absl::StatusOr<FieldValue> ParseStringList(const FieldSpec& field, const YamlNode& node,
                                           const EnvLookup& env) {
  if (node.kind != YamlNode::Kind::kSequence) {
    return absl::InvalidArgumentError(fmt::format(
        "expected a list, got {}{}", node.KindName(),
        node.kind == YamlNode::Kind::kScalar ? fmt::format("; write [{}]", node.scalar) : ""));
  }
  std::vector<std::string> list;
  for (size_t i = 0; i < node.items.size(); ++i) {
    const YamlNode& item = node.items[i];
    if (item.kind != YamlNode::Kind::kScalar) {
      return absl::InvalidArgumentError(
          fmt::format("item {}: expected text, got {}", i, item.KindName()));
    }
    BATON_ASSIGN_OR_RETURN(std::string text, Expand(field, item.scalar, env));
    list.push_back(std::move(text));
  }
  return FieldValue(std::move(list));
}

absl::Status CheckText(const FieldSpec& field, const std::string& text) {
  if (text.find('\0') != std::string::npos) {
    return absl::InvalidArgumentError("has a NUL character");
  }
  return field.check ? field.check(text) : absl::OkStatus();
}

}  // namespace

absl::Status CheckFieldValue(const FieldSpec& field, const FieldValue& value) {
  if (const int64_t* number = std::get_if<int64_t>(&value)) {
    if (*number < field.int_min || *number > field.int_max) {
      return OutOfRange(FormatInt(field, *number), field);
    }
  } else if (const double* real = std::get_if<double>(&value)) {
    const bool below = field.min_exclusive ? *real <= field.double_min : *real < field.double_min;
    if (below || *real > field.double_max) return OutOfRange(FormatDouble(*real), field);
  } else if (const auto* text = std::get_if<std::string>(&value)) {
    if (field.type == FieldType::kEnum) return absl::OkStatus();
    if (text->size() < field.min_size || text->size() > field.max_size) {
      return absl::InvalidArgumentError(
          text->empty() ? fmt::format("must not be empty; allowed: {}", Allowed(field))
                        : fmt::format("{} characters; allowed: {}", text->size(), Allowed(field)));
    }
    return CheckText(field, *text);
  } else if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
    if (list->size() < field.min_size || list->size() > field.max_size) {
      return absl::InvalidArgumentError(
          fmt::format("{} items; allowed: {}", list->size(), Allowed(field)));
    }
    for (size_t i = 0; i < list->size(); ++i) {
      const absl::Status status = CheckText(field, (*list)[i]);
      if (!status.ok()) {
        return absl::InvalidArgumentError(fmt::format("item {}: {}", i, status.message()));
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<FieldValue> ParseFieldValue(const FieldSpec& field, const YamlNode& node,
                                           const EnvLookup& env) {
  FieldValue value;
  if (field.type == FieldType::kStringList) {
    BATON_ASSIGN_OR_RETURN(value, ParseStringList(field, node, env));
  } else if (node.kind != YamlNode::Kind::kScalar) {
    return absl::InvalidArgumentError(
        fmt::format("expected {}, got {}", TypeName(field), node.KindName()));
  } else {
    BATON_ASSIGN_OR_RETURN(value, ParseScalar(field, node, env));
  }
  BATON_RETURN_IF_ERROR(CheckFieldValue(field, value));
  return value;
}

std::string TypeName(const FieldSpec& field) {
  switch (field.type) {
    case FieldType::kBool:
      return "a boolean";
    case FieldType::kInt:
      return field.port ? "a port" : "an integer";
    case FieldType::kDouble:
      return "a number";
    case FieldType::kString:
      return "text";
    case FieldType::kEnum:
      return "a name";
    case FieldType::kDuration:
      return "a duration";
    case FieldType::kBytes:
      return "a size";
    case FieldType::kStringList:
      return "a list of text";
    case FieldType::kSection:
      return "a mapping";
    case FieldType::kSectionList:
      return "a list of mappings";
  }
  return "a value";
}

std::string AllowedSizes(const FieldSpec& field, std::string_view unit) {
  if (field.min_size == 0 && field.max_size == kSizeMax) return "";
  if (field.max_size == kSizeMax) return fmt::format("at least {} {}", field.min_size, unit);
  return fmt::format("{} to {} {}", field.min_size, field.max_size, unit);
}

std::string Allowed(const FieldSpec& field) {
  const auto or_auto = [&field](std::string text) {
    return field.optional ? text + " or auto" : text;
  };
  switch (field.type) {
    case FieldType::kBool:
      return or_auto("true, false");
    case FieldType::kInt:
    case FieldType::kDuration:
    case FieldType::kBytes:
      if (field.int_min == kIntMin && field.int_max == kIntMax) return or_auto("any");
      if (field.int_max == kIntMax) {
        return or_auto(fmt::format("at least {}", FormatInt(field, field.int_min)));
      }
      return or_auto(fmt::format("{} to {}", FormatInt(field, field.int_min),
                                 FormatInt(field, field.int_max)));
    case FieldType::kDouble: {
      const bool low = field.double_min != -std::numeric_limits<double>::infinity();
      const bool high = field.double_max != std::numeric_limits<double>::infinity();
      const std::string min =
          fmt::format("{}{}", field.min_exclusive ? "above " : "", FormatDouble(field.double_min));
      if (low && high) {
        return or_auto(fmt::format("{}{} {}", min, field.min_exclusive ? ", at most" : " to",
                                   FormatDouble(field.double_max)));
      }
      if (low) return or_auto(field.min_exclusive ? min : "at least " + min);
      if (high) return or_auto(fmt::format("at most {}", FormatDouble(field.double_max)));
      return or_auto("any");
    }
    case FieldType::kEnum: {
      std::string names;
      for (const std::string& name : field.enum_names) names += (names.empty() ? "" : ", ") + name;
      return or_auto(names);
    }
    case FieldType::kString:
      return or_auto(AllowedSizes(field, "characters"));
    default:
      return AllowedSizes(field, "items");
  }
}

}  // namespace baton::config
