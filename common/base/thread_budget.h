// One process-wide split of the processors among engine, workers and transport. Threads that fight
// over too few cores stall by 10-50x, so nobody sizes a pool by hardware_concurrency().
#pragma once

#include "absl/status/statusor.h"
#include "common/base/machine.h"

namespace baton {

struct ThreadBudget {
  int engine = 1;     // threads of one model step (compute)
  int worker = 1;     // decode-and-patch, tokenising, encoding
  int transport = 1;  // progress threads; they sleep when idle

  // Splits `cpus` (>= 1): transport always 1; workers a quarter, at least 1; the engine the rest,
  // at least 1 (on one core they share it).
  static ThreadBudget Split(int cpus);

  // As Split(EffectiveCpuCount()), with `engine` and `worker` overriding when > 0. Explicit numbers
  // must be in [0, 4096] (0: choose); INVALID_ARGUMENT otherwise.
  static absl::StatusOr<ThreadBudget> FromConfig(int engine, int worker,
                                                 const MachineFiles& files = MachineFiles::Real());
};

}  // namespace baton
