#include "common/base/fault.h"

#include <csignal>
#include <cstdlib>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/base/ids.h"
#include "common/base/logging.h"
#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace baton {
namespace fault_internal {
std::atomic<bool> g_enabled{false};
}

namespace {

struct Point {
  Fault fault;
  int64_t hits = 0;
};

struct Registry {
  Mutex mu;
  std::map<std::string, Point, std::less<>> points GUARDED_BY(mu);
  std::mt19937_64 random GUARDED_BY(mu){RandomId64()};
};

Registry& GetRegistry() {
  static Registry* registry = new Registry;
  return *registry;
}

absl::Status Bad(std::string_view part, std::string_view why) {
  return absl::InvalidArgumentError(
      fmt::format("fault '{}': {}; expected point=error[:p], delay:ms[:p] or kill[:p]", part, why));
}

bool IsName(std::string_view name) {
  if (name.empty()) return false;
  for (const char c : name) {
    const bool fine = (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
    if (!fine) return false;
  }
  return true;
}

absl::StatusOr<std::pair<std::string, Fault>> ParseFault(std::string_view part) {
  const std::vector<std::string> sides = absl::StrSplit(AbslView(part), '=');
  if (sides.size() != 2) return Bad(part, "needs exactly one '='");
  if (!IsName(sides[0])) return Bad(part, "a name is made of a-z, 0-9, '_' and '.'");
  std::vector<std::string> words = absl::StrSplit(sides[1], ':');
  Fault fault;
  size_t next = 1;
  if (words[0] == "error") {
    fault.action = Fault::Action::kError;
  } else if (words[0] == "kill") {
    fault.action = Fault::Action::kKill;
  } else if (words[0] == "delay") {
    fault.action = Fault::Action::kDelay;
    int64_t ms = 0;
    if (words.size() < 2 || !absl::SimpleAtoi(words[1], &ms) || ms < 0 || ms > 600'000) {
      return Bad(part, "delay needs milliseconds from 0 to 600000");
    }
    fault.delay = std::chrono::milliseconds(ms);
    next = 2;
  } else {
    return Bad(part, "unknown action '" + words[0] + "'");
  }
  if (words.size() > next) {
    const bool number = absl::SimpleAtod(words[next], &fault.probability);
    if (!number || !(fault.probability > 0 && fault.probability <= 1)) {
      return Bad(part, "a probability is above 0 and at most 1");
    }
    ++next;
  }
  if (words.size() > next) return Bad(part, "unexpected ':" + words[next] + "'");
  return std::make_pair(sides[0], fault);
}

}  // namespace

absl::Status InitFaultsFromEnv() {
  const char* text = std::getenv("BATON_FAULTS");
  if (text == nullptr || *text == '\0') return absl::OkStatus();
  absl::Status status = AddFaults(text);
  if (!status.ok()) {
    return absl::InvalidArgumentError(fmt::format("BATON_FAULTS: {}", status.message()));
  }
  BATON_LOG_WARN("fault injection is on: BATON_FAULTS={}", text);
  return absl::OkStatus();
}

absl::Status AddFaults(std::string_view specification) {
  std::vector<std::pair<std::string, Fault>> parsed;
  for (absl::string_view part : absl::StrSplit(AbslView(specification), ',')) {
    BATON_ASSIGN_OR_RETURN(auto fault, ParseFault(StdView(part)));
    for (const auto& earlier : parsed) {
      if (earlier.first == fault.first) return Bad(StdView(part), "this point is named twice");
    }
    parsed.push_back(std::move(fault));
  }
  for (auto& [point, fault] : parsed) SetFault(point, std::move(fault));
  return absl::OkStatus();
}

void SetFault(std::string_view point, Fault fault) {
  Registry& registry = GetRegistry();
  MutexLock lock(registry.mu);
  registry.points.insert_or_assign(std::string(point), Point{std::move(fault)});
  fault_internal::g_enabled.store(true, std::memory_order_relaxed);
}

void ClearFault(std::string_view point) {
  Registry& registry = GetRegistry();
  MutexLock lock(registry.mu);
  if (auto it = registry.points.find(point); it != registry.points.end()) registry.points.erase(it);
  fault_internal::g_enabled.store(!registry.points.empty(), std::memory_order_relaxed);
}

void ClearFaults() {
  Registry& registry = GetRegistry();
  MutexLock lock(registry.mu);
  registry.points.clear();
  fault_internal::g_enabled.store(false, std::memory_order_relaxed);
}

int64_t FaultHits(std::string_view point) {
  Registry& registry = GetRegistry();
  MutexLock lock(registry.mu);
  const auto it = registry.points.find(point);
  return it == registry.points.end() ? 0 : it->second.hits;
}

absl::Status fault_internal::Hit(std::string_view name) {
  Fault fault;
  {
    Registry& registry = GetRegistry();
    MutexLock lock(registry.mu);
    const auto it = registry.points.find(name);
    if (it == registry.points.end()) return absl::OkStatus();
    Point& point = it->second;
    if (point.fault.max_hits >= 0 && point.hits >= point.fault.max_hits) return absl::OkStatus();
    if (std::uniform_real_distribution<double>(0, 1)(registry.random) >= point.fault.probability) {
      return absl::OkStatus();
    }
    ++point.hits;
    fault = point.fault;
  }
  switch (fault.action) {
    case Fault::Action::kDelay:
      std::this_thread::sleep_for(fault.delay);
      return absl::OkStatus();
    case Fault::Action::kKill:
      std::raise(SIGKILL);
      return absl::OkStatus();
    case Fault::Action::kError:
      break;
  }
  if (!fault.error.ok()) return fault.error;
  return absl::UnavailableError(fmt::format("injected fault at {}", name));
}

}  // namespace baton
