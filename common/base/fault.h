// Named places where tests make things fail.
//
//   BATON_RETURN_IF_ERROR(BATON_FAULT_POINT("producer.before_send"));
//
// Off (the default) a point costs one relaxed atomic load. Turned on by the environment,
//   BATON_FAULTS="producer.before_send=error:0.1,receiver.frame=delay:20,engine.step=kill:0.01"
// or by a test through ScopedFault. Actions, each with an optional probability (0, 1] as its last
// part: error[:p] returns UNAVAILABLE, delay:ms[:p] sleeps, kill[:p] is SIGKILL to this process.
// Thread-safe.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace baton {

struct Fault {
  enum class Action { kError, kDelay, kKill };
  Action action = Action::kError;
  double probability = 1.0;            // (0, 1]
  std::chrono::milliseconds delay{0};  // kDelay
  int64_t max_hits = -1;               // fires at most so often; -1: no limit
  absl::Status error;                  // kError; ok: UNAVAILABLE naming the point
};

// Reads BATON_FAULTS; a daemon's main calls it once. Absent: ok and off. INVALID_ARGUMENT names the
// part that doesn't parse.
absl::Status InitFaultsFromEnv();
// Adds the faults of a specification as above; all or nothing.
absl::Status AddFaults(std::string_view specification);
void SetFault(std::string_view point, Fault fault);
void ClearFault(std::string_view point);
void ClearFaults();
// How often a fault fired at this point since it was set.
int64_t FaultHits(std::string_view point);

class ScopedFault {
 public:
  ScopedFault(std::string_view point, Fault fault) : point_(point) {
    SetFault(point_, std::move(fault));
  }
  ~ScopedFault() { ClearFault(point_); }
  ScopedFault(const ScopedFault&) = delete;
  ScopedFault& operator=(const ScopedFault&) = delete;

 private:
  const std::string point_;
};

namespace fault_internal {
extern std::atomic<bool> g_enabled;
absl::Status Hit(std::string_view point);
}  // namespace fault_internal
}  // namespace baton

#define BATON_FAULT_POINT(name)                                       \
  (::baton::fault_internal::g_enabled.load(std::memory_order_relaxed) \
       ? ::baton::fault_internal::Hit(name)                           \
       : ::absl::OkStatus())
