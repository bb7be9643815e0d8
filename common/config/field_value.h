// One field's value: from a YAML node by the field's table entry, and the words for what is
// allowed. Used by load.cc, overrides.cc and print.cc only.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/config/scalar.h"
#include "common/config/schema.h"
#include "common/config/yaml_tree.h"

namespace baton::config {

using EnvLookup = std::function<std::optional<std::string>(const std::string& name)>;

// `node` is not null; `field` is no section. INVALID_ARGUMENT with the given value and what is
// allowed.
absl::StatusOr<FieldValue> ParseFieldValue(const FieldSpec& field, const YamlNode& node,
                                           const EnvLookup& env);

// Limits, sizes and the field's own check; ok for monostate.
absl::Status CheckFieldValue(const FieldSpec& field, const FieldValue& value);

std::string TypeName(const FieldSpec& field);  // "integer", "duration", "one of a, b", ...
// "1 to 4096"; empty: anything of the type.
std::string Allowed(const FieldSpec& field);
std::string AllowedSizes(const FieldSpec& field, std::string_view unit);

}  // namespace baton::config
