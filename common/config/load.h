// Reads config files by a section's table (schema.h), prints what is in force, writes the reference
// page, compares two configurations at reload.
//
//   auto config = config::LoadFile(DecodeNodeSection(), "decode.yaml", {.sets = {"rpc.port=0"}});
//   if (!config.ok()) { std::cerr << config.status().message(); return 2; }
//   BATON_LOG_INFO("effective configuration:\n{}", config::PrintEffective(section, *config));
//
// Precedence: defaults < file < environment (only fields that name a variable) < --set. All errors
// of a file are reported at once, one a line: "decode.yaml:7: engine.max_batch: 0 is out of range;
// allowed: 1 to 4096". Pure but for reading the file and the environment.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/config/schema.h"

namespace baton::config {

struct LoadOptions {
  // "a.b=value", "models[0].path=/x", "peers=[a, b]". For a scalar the text is the value as it
  // would stand in the file (quotes allowed); "a.b=" means "not set".
  std::vector<std::string> sets;
  // Looks up an environment variable; empty: getenv.
  std::function<std::optional<std::string>(const std::string& name)> env;
};

namespace load_internal {
absl::Status LoadInto(const SectionSpec& section, std::string_view text, std::string_view file_name,
                      const LoadOptions& options, void* object);
absl::StatusOr<std::string> ReadFile(const std::string& path);
std::string PrintEffective(const SectionSpec& section, const void* object, const void* defaults);
std::string Reference(const SectionSpec& section, const void* defaults, std::string_view title);
std::vector<std::string> Changed(const SectionSpec& section, const void* before, const void* after,
                                 bool reloadable);
void CopyReloadable(const SectionSpec& section, const void* from, void* to);
}  // namespace load_internal

// INVALID_ARGUMENT with all errors; NOT_FOUND or PERMISSION_DENIED when the file can't be read.
template <typename T>
absl::StatusOr<T> Parse(const Section<T>& section, std::string_view text,
                        std::string_view file_name, const LoadOptions& options = {}) {
  T value{};
  absl::Status status = load_internal::LoadInto(*section.spec(), text, file_name, options, &value);
  if (!status.ok()) return status;
  return value;
}

template <typename T>
absl::StatusOr<T> LoadFile(const Section<T>& section, const std::string& path,
                           const LoadOptions& options = {}) {
  absl::StatusOr<std::string> text = load_internal::ReadFile(path);
  if (!text.ok()) return text.status();
  return Parse(section, *text, path, options);
}

// YAML that reads back to the same value (secrets apart). Unset optionals are shown as
// "key: null  # not set", values equal to the default carry "# default".
template <typename T>
std::string PrintEffective(const Section<T>& section, const T& value) {
  const T defaults{};
  return load_internal::PrintEffective(*section.spec(), &value, &defaults);
}

// Markdown: per section a table of key, type, default, limits, reload, help.
template <typename T>
std::string Reference(const Section<T>& section, std::string_view title) {
  const T defaults{};
  return load_internal::Reference(*section.spec(), &defaults, title);
}

// Keys that differ. `needs_restart` are those a reload can't apply.
struct ReloadPlan {
  std::vector<std::string> reloadable;
  std::vector<std::string> needs_restart;
};
template <typename T>
ReloadPlan CompareForReload(const Section<T>& section, const T& before, const T& after) {
  return {load_internal::Changed(*section.spec(), &before, &after, true),
          load_internal::Changed(*section.spec(), &before, &after, false)};
}
// `current` with only the reloadable fields of `next`.
template <typename T>
T ApplyReloadable(const Section<T>& section, T current, const T& next) {
  load_internal::CopyReloadable(*section.spec(), &next, &current);
  return current;
}

}  // namespace baton::config
