// What a daemon does at SIGHUP: reads its file again and takes over what may change while it runs.
//
//   shutdown.OnHup([&] {
//     if (config::ReloadFile(section, path, load, config).ok()) SetLogLevel(config.log.level);
//   });
//   shutdown.Wait();
//   shutdown.OnHup(nullptr);   // waits for a reload that runs; `config` is this thread's again
#pragma once

#include <string>
#include <utility>

#include "absl/status/status.h"
#include "common/base/logging.h"
#include "common/config/load.h"

namespace baton::config {

// Loads `path` as at the start, copies the reloadable fields into `running`, and logs each key that
// was taken over or needs a restart. A bad file changes nothing; the error is logged and returned.
template <typename T>
absl::Status ReloadFile(const Section<T>& section, const std::string& path,
                        const LoadOptions& options, T& running) {
  const absl::StatusOr<T> next = LoadFile(section, path, options);
  if (!next.ok()) {
    BATON_LOG_ERROR("reload refused, the old configuration stays:");
    LogLines(LogLevel::kError, "reload: ", StdView(next.status().message()));
    return next.status();
  }
  const ReloadPlan plan = CompareForReload(section, running, *next);
  running = ApplyReloadable(section, std::move(running), *next);
  for (const std::string& key : plan.reloadable) BATON_LOG_INFO("reloaded: {}", key);
  for (const std::string& key : plan.needs_restart) {
    BATON_LOG_WARN("changed in the file but needs a restart: {}", key);
  }
  if (plan.reloadable.empty() && plan.needs_restart.empty()) {
    BATON_LOG_INFO("reload: nothing has changed");
  }
  return absl::OkStatus();
}

}  // namespace baton::config
