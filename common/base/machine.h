// What this process may use of the machine: memory and processors, as the kernel and the
// container limit them (cgroup v1 or v2, from the process's own group up to the root).
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace baton {

// The seam to /proc and /sys. Thread-safe.
class MachineFiles {
 public:
  virtual ~MachineFiles() = default;
  // Contents of a small text file; NOT_FOUND when it isn't there.
  virtual absl::StatusOr<std::string> Read(const std::string& path) const = 0;
  // Processors in the scheduling affinity of this process; at least 1.
  virtual int AffinityCpus() const = 0;

  static const MachineFiles& Real();
};

// All in bytes.
struct MachineMemory {
  uint64_t physical = 0;                 // MemTotal
  uint64_t available = 0;                // MemAvailable
  std::optional<uint64_t> cgroup_limit;  // tightest limit of the group and its ancestors
  uint64_t cgroup_used = 0;              // by the group that has this limit; reclaimable file
                                         // cache not counted

  // The most this process could ever hold: min(physical, cgroup limit).
  uint64_t Limit() const;
  // What it may still take now: min(available, cgroup limit - cgroup used).
  uint64_t Free() const;
};

absl::StatusOr<MachineMemory> ReadMachineMemory(const MachineFiles& files = MachineFiles::Real());

// Processors of CPU time per second the cgroup allows (may be fractional); nullopt: no limit.
std::optional<double> CgroupCpuQuota(const MachineFiles& files = MachineFiles::Real());

// min(affinity, quota rounded up), at least 1.
int EffectiveCpuCount(const MachineFiles& files = MachineFiles::Real());

}  // namespace baton
