#include "common/base/machine.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <sstream>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"

namespace baton {
namespace {

// cgroup v1 writes "no limit" as a huge page-rounded number.
constexpr uint64_t kV1NoLimit = uint64_t{1} << 60;

class RealMachineFiles : public MachineFiles {
 public:
  absl::StatusOr<std::string> Read(const std::string& path) const override {
    std::ifstream in(path, std::ios::binary);
    if (!in) return absl::NotFoundError(path);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }

  int AffinityCpus() const override {
    // The mask must be as large as the kernel's, which may exceed the fixed cpu_set_t.
    for (int cpus = 1024; cpus <= 1 << 20; cpus *= 2) {
      cpu_set_t* set = CPU_ALLOC(cpus);
      if (set == nullptr) break;
      const size_t bytes = CPU_ALLOC_SIZE(cpus);
      const bool ok = sched_getaffinity(0, bytes, set) == 0;
      const int count = ok ? CPU_COUNT_S(bytes, set) : 0;
      CPU_FREE(set);
      if (ok) return std::max(1, count);
    }
    return static_cast<int>(std::max(1L, sysconf(_SC_NPROCESSORS_ONLN)));
  }
};

std::optional<uint64_t> ReadNumber(const MachineFiles& files, const std::string& path) {
  const absl::StatusOr<std::string> text = files.Read(path);
  uint64_t value = 0;
  if (!text.ok() || !absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &value)) {
    return std::nullopt;
  }
  return value;
}

// "Key:   123 kB" lines of /proc/meminfo.
std::optional<uint64_t> MeminfoBytes(absl::string_view text, absl::string_view key) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, key) || !absl::ConsumePrefix(&line, ":")) continue;
    line = absl::StripAsciiWhitespace(line);
    const bool kilo = absl::ConsumeSuffix(&line, "kB");
    uint64_t value = 0;
    if (!absl::SimpleAtoi(absl::StripAsciiWhitespace(line), &value)) return std::nullopt;
    return kilo ? value * 1024 : value;
  }
  return std::nullopt;
}

// Value of "key value" in a memory.stat file; 0 if absent.
uint64_t StatValue(const MachineFiles& files, const std::string& path, absl::string_view key) {
  const absl::StatusOr<std::string> text = files.Read(path);
  if (!text.ok()) return 0;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ');
    uint64_t value = 0;
    if (words.size() == 2 && words[0] == key && absl::SimpleAtoi(words[1], &value)) return value;
  }
  return 0;
}

// Paths of the process's group in each hierarchy, from /proc/self/cgroup.
struct CgroupPaths {
  std::optional<std::string> v2;
  std::optional<std::string> v1_memory;
  std::optional<std::string> v1_cpu;
};

CgroupPaths FindCgroups(const MachineFiles& files) {
  CgroupPaths paths;
  const absl::StatusOr<std::string> text = files.Read("/proc/self/cgroup");
  if (!text.ok()) return paths;
  for (absl::string_view line : absl::StrSplit(*text, '\n')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    const std::string path(parts[2]);
    if (parts[0] == "0" && parts[1].empty()) paths.v2 = path;
    for (absl::string_view controller : absl::StrSplit(parts[1], ',')) {
      if (controller == "memory") paths.v1_memory = path;
      if (controller == "cpu") paths.v1_cpu = path;
    }
  }
  return paths;
}

// The group's folder and its ancestors', below `mount`. Inside a container the path may be the
// host's and not exist here; the mount's root then still carries the container's own limit.
std::vector<std::string> Folders(const std::string& mount, absl::string_view path) {
  std::vector<std::string> folders;
  while (!path.empty() && path != "/") {
    folders.push_back(absl::StrCat(mount, path));
    const size_t slash = path.rfind('/');
    path = slash == absl::string_view::npos ? absl::string_view() : path.substr(0, slash);
  }
  folders.push_back(mount);
  return folders;
}

struct MemoryLimit {
  uint64_t bytes;
  uint64_t used;
};

void Tighten(std::optional<MemoryLimit>& best, const MemoryLimit& other) {
  const auto room = [](const MemoryLimit& l) { return l.bytes - std::min(l.bytes, l.used); };
  if (!best || other.bytes < best->bytes ||
      (other.bytes == best->bytes && room(other) < room(*best))) {
    best = other;
  }
}

std::optional<MemoryLimit> CgroupMemory(const MachineFiles& files) {
  std::optional<MemoryLimit> best;
  const CgroupPaths paths = FindCgroups(files);
  for (const std::string& folder : Folders("/sys/fs/cgroup", paths.v2.value_or("/"))) {
    const std::optional<uint64_t> max = ReadNumber(files, folder + "/memory.max");
    if (!max) continue;  // "max", or no such file
    const uint64_t used = ReadNumber(files, folder + "/memory.current").value_or(0);
    const uint64_t cache = StatValue(files, folder + "/memory.stat", "inactive_file");
    Tighten(best, {*max, used - std::min(used, cache)});
  }
  for (const std::string& folder :
       Folders("/sys/fs/cgroup/memory", paths.v1_memory.value_or("/"))) {
    const std::optional<uint64_t> max = ReadNumber(files, folder + "/memory.limit_in_bytes");
    if (!max || *max >= kV1NoLimit) continue;
    const uint64_t used = ReadNumber(files, folder + "/memory.usage_in_bytes").value_or(0);
    const uint64_t cache = StatValue(files, folder + "/memory.stat", "total_inactive_file");
    Tighten(best, {*max, used - std::min(used, cache)});
  }
  return best;
}

}  // namespace

const MachineFiles& MachineFiles::Real() {
  static const RealMachineFiles files;
  return files;
}

uint64_t MachineMemory::Limit() const {
  return std::min(physical, cgroup_limit.value_or(physical));
}

uint64_t MachineMemory::Free() const {
  if (!cgroup_limit) return available;
  return std::min(available, *cgroup_limit - std::min(*cgroup_limit, cgroup_used));
}

absl::StatusOr<MachineMemory> ReadMachineMemory(const MachineFiles& files) {
  const absl::StatusOr<std::string> meminfo = files.Read("/proc/meminfo");
  if (!meminfo.ok()) return meminfo.status();
  const std::optional<uint64_t> total = MeminfoBytes(*meminfo, "MemTotal");
  if (!total || *total == 0) return absl::InternalError("/proc/meminfo: no usable MemTotal");
  MachineMemory memory;
  memory.physical = *total;
  // Kernels before 3.14 have no MemAvailable.
  memory.available = MeminfoBytes(*meminfo, "MemAvailable")
                         .value_or(MeminfoBytes(*meminfo, "MemFree").value_or(*total));
  if (const std::optional<MemoryLimit> limit = CgroupMemory(files)) {
    memory.cgroup_limit = limit->bytes;
    memory.cgroup_used = limit->used;
  }
  return memory;
}

std::optional<double> CgroupCpuQuota(const MachineFiles& files) {
  std::optional<double> best;
  const auto tighten = [&best](double cpus) { best = best ? std::min(*best, cpus) : cpus; };
  const CgroupPaths paths = FindCgroups(files);
  for (const std::string& folder : Folders("/sys/fs/cgroup", paths.v2.value_or("/"))) {
    const absl::StatusOr<std::string> text = files.Read(folder + "/cpu.max");
    if (!text.ok()) continue;
    const std::vector<absl::string_view> words =
        absl::StrSplit(absl::StripAsciiWhitespace(*text), ' ');
    double quota = 0;
    double period = 0;
    if (words.size() == 2 && absl::SimpleAtod(words[0], &quota) &&
        absl::SimpleAtod(words[1], &period) && quota > 0 && period > 0) {
      tighten(quota / period);
    }
  }
  for (const char* mount : {"/sys/fs/cgroup/cpu", "/sys/fs/cgroup/cpu,cpuacct"}) {
    for (const std::string& folder : Folders(mount, paths.v1_cpu.value_or("/"))) {
      // -1 means no limit and doesn't parse as unsigned.
      const std::optional<uint64_t> quota = ReadNumber(files, folder + "/cpu.cfs_quota_us");
      const std::optional<uint64_t> period = ReadNumber(files, folder + "/cpu.cfs_period_us");
      if (quota && period && *quota > 0 && *period > 0) {
        tighten(static_cast<double>(*quota) / static_cast<double>(*period));
      }
    }
  }
  return best;
}

int EffectiveCpuCount(const MachineFiles& files) {
  const int affinity = std::max(1, files.AffinityCpus());
  const std::optional<double> quota = CgroupCpuQuota(files);
  if (!quota) return affinity;
  return std::max(1, std::min(affinity, static_cast<int>(std::ceil(std::min(*quota, 1e6)))));
}

}  // namespace baton
