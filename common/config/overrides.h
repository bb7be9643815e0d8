// What may change a file's tree before it is read: named environment variables, then --set.
// Used by load.cc only.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "common/config/field_value.h"
#include "common/config/schema.h"
#include "common/config/yaml_tree.h"

namespace baton::config {

// For every field (outside lists) that names a variable which is set and not empty.
void ApplyEnvironment(const SectionSpec& section, const EnvLookup& env, YamlNode& root);

// One "path=value". INVALID_ARGUMENT naming the assignment when the path is unknown or malformed.
absl::Status ApplySet(const SectionSpec& section, const std::string& assignment, YamlNode& root);

}  // namespace baton::config
