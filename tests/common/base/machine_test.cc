#include "common/base/machine.h"

#include <gtest/gtest.h>

#include <map>

#include "common/base/thread_budget.h"

namespace baton {
namespace {

constexpr uint64_t kMiB = 1 << 20;
constexpr uint64_t kGiB = 1 << 30;

using Files = std::map<std::string, std::string>;

class FakeFiles : public MachineFiles {
 public:
  explicit FakeFiles(Files files, int cpus = 8) : files_(std::move(files)), cpus_(cpus) {
    files_.emplace("/proc/meminfo",
                   "MemTotal:       16777216 kB\nMemFree:         1048576 kB\n"
                   "MemAvailable:    8388608 kB\nSwapTotal: 0 kB\n");
  }
  absl::StatusOr<std::string> Read(const std::string& path) const override {
    const auto it = files_.find(path);
    if (it == files_.end()) return absl::NotFoundError(path);
    return it->second;
  }
  int AffinityCpus() const override { return cpus_; }

 private:
  Files files_;
  const int cpus_;
};

MachineMemory Memory(Files files) {
  const auto memory = ReadMachineMemory(FakeFiles(std::move(files)));
  EXPECT_TRUE(memory.ok()) << memory.status();
  return memory.ok() ? *memory : MachineMemory();
}

TEST(MachineTest, NoCgroupMeansPhysical) {
  const MachineMemory memory = Memory({});
  EXPECT_EQ(memory.physical, 16 * kGiB);
  EXPECT_EQ(memory.cgroup_limit, std::nullopt);
  EXPECT_EQ(memory.Limit(), 16 * kGiB);
  EXPECT_EQ(memory.Free(), 8 * kGiB);
}

TEST(MachineTest, CgroupV2InsideAContainer) {
  const MachineMemory memory =
      Memory({{"/proc/self/cgroup", "0::/\n"},
              {"/sys/fs/cgroup/memory.max", "1073741824\n"},
              {"/sys/fs/cgroup/memory.current", "524288000\n"},
              {"/sys/fs/cgroup/memory.stat", "anon 1\ninactive_file 104857600\nactive_file 7\n"}});
  EXPECT_EQ(memory.Limit(), kGiB);
  EXPECT_EQ(memory.cgroup_used, 400 * kMiB);  // the cache can be reclaimed
  EXPECT_EQ(memory.Free(), 624 * kMiB);
}

TEST(MachineTest, CgroupV2TightestAncestorCounts) {
  const MachineMemory memory = Memory({{"/proc/self/cgroup", "0::/a.slice/b.scope\n"},
                                       {"/sys/fs/cgroup/a.slice/b.scope/memory.max", "max\n"},
                                       {"/sys/fs/cgroup/a.slice/memory.max", "2147483648\n"},
                                       {"/sys/fs/cgroup/a.slice/memory.current", "0\n"}});
  EXPECT_EQ(memory.Limit(), 2 * kGiB);
}

TEST(MachineTest, CgroupV2WithoutLimit) {
  EXPECT_EQ(Memory({{"/proc/self/cgroup", "0::/\n"}, {"/sys/fs/cgroup/memory.max", "max\n"}})
                .cgroup_limit,
            std::nullopt);
}

TEST(MachineTest, CgroupV1) {
  // The path is the host's; inside the container only the mount's root exists.
  const MachineMemory memory =
      Memory({{"/proc/self/cgroup", "5:memory:/docker/abc\n4:cpu,cpuacct:/docker/abc\n"},
              {"/sys/fs/cgroup/memory/memory.limit_in_bytes", "536870912\n"},
              {"/sys/fs/cgroup/memory/memory.usage_in_bytes", "536870913\n"}});
  EXPECT_EQ(memory.Limit(), 512 * kMiB);
  EXPECT_EQ(memory.Free(), 0u);  // over its limit: no wrap-around
  EXPECT_EQ(Memory({{"/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"}})
                .cgroup_limit,
            std::nullopt);
}

TEST(MachineTest, GarbageIsNoLimit) {
  const MachineMemory memory = Memory(
      {{"/proc/self/cgroup", "garbage\n::::\n0::\n"}, {"/sys/fs/cgroup/memory.max", "lots"}});
  EXPECT_EQ(memory.Limit(), 16 * kGiB);
  EXPECT_FALSE(ReadMachineMemory(FakeFiles(Files{{"/proc/meminfo", "nothing"}})).ok());
  EXPECT_FALSE(ReadMachineMemory(FakeFiles(Files{{"/proc/meminfo", "MemTotal: 0 kB"}})).ok());
}

TEST(MachineTest, LimitAboveTheMachineIsTheMachine) {
  EXPECT_EQ(Memory({{"/sys/fs/cgroup/memory.max", "1099511627776"}}).Limit(), 16 * kGiB);
}

TEST(MachineTest, CpuQuota) {
  const auto cpus = [](Files files, int affinity) {
    return EffectiveCpuCount(FakeFiles(std::move(files), affinity));
  };
  EXPECT_EQ(cpus({}, 8), 8);
  EXPECT_EQ(cpus({{"/sys/fs/cgroup/cpu.max", "max 100000\n"}}, 8), 8);
  EXPECT_EQ(cpus({{"/sys/fs/cgroup/cpu.max", "200000 100000\n"}}, 8), 2);
  EXPECT_EQ(cpus({{"/sys/fs/cgroup/cpu.max", "250000 100000\n"}}, 8), 3);  // 2.5, rounded up
  EXPECT_EQ(cpus({{"/sys/fs/cgroup/cpu.max", "10000 100000\n"}}, 8), 1);
  EXPECT_EQ(cpus({{"/sys/fs/cgroup/cpu.max", "1600000 100000\n"}}, 8), 8);
  EXPECT_EQ(cpus({{"/sys/fs/cgroup/cpu.max", "0 0\n"}}, 8), 8);
  EXPECT_EQ(cpus({{"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "-1\n"},
                  {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}},
                 8),
            8);
  EXPECT_EQ(cpus({{"/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "150000\n"},
                  {"/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n"}},
                 8),
            2);
  EXPECT_DOUBLE_EQ(*CgroupCpuQuota(FakeFiles(Files{{"/sys/fs/cgroup/cpu.max", "150000 100000"}})),
                   1.5);
}

TEST(MachineTest, TheRealMachineAnswers) {
  const auto memory = ReadMachineMemory();
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_GT(memory->Limit(), 64 * kMiB);
  EXPECT_LE(memory->Limit(), memory->physical);
  EXPECT_GE(EffectiveCpuCount(), 1);
}

TEST(ThreadBudgetTest, SplitNeverExceedsTheCores) {
  EXPECT_EQ(ThreadBudget::Split(0).engine, 1);
  EXPECT_EQ(ThreadBudget::Split(1).engine, 1);
  EXPECT_EQ(ThreadBudget::Split(1).worker, 1);
  EXPECT_EQ(ThreadBudget::Split(2).engine, 1);
  EXPECT_EQ(ThreadBudget::Split(8).engine, 6);
  EXPECT_EQ(ThreadBudget::Split(8).worker, 2);
  for (int cpus = 2; cpus <= 256; ++cpus) {
    const ThreadBudget budget = ThreadBudget::Split(cpus);
    EXPECT_LE(budget.engine + budget.worker, cpus);
    EXPECT_EQ(budget.transport, 1);
  }
}

TEST(ThreadBudgetTest, ConfigOverrides) {
  const FakeFiles files({}, 8);
  EXPECT_EQ(ThreadBudget::FromConfig(0, 0, files)->engine, 6);
  EXPECT_EQ(ThreadBudget::FromConfig(3, 0, files)->engine, 3);
  EXPECT_EQ(ThreadBudget::FromConfig(0, 5, files)->engine, 3);
  EXPECT_EQ(ThreadBudget::FromConfig(0, 50, files)->engine, 1);
  EXPECT_FALSE(ThreadBudget::FromConfig(-1, 0, files).ok());
  EXPECT_EQ(ThreadBudget::FromConfig(0, 5000, files).status().message(),
            "threads.worker: 5000 is out of range; allowed: 0 (choose) to 4096");
}

}  // namespace
}  // namespace baton
