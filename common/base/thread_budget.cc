#include "common/base/thread_budget.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace baton {
namespace {

constexpr int kMaxThreads = 4096;

absl::Status CheckCount(const char* name, int count) {
  if (count >= 0 && count <= kMaxThreads) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "threads.", name, ": ", count, " is out of range; allowed: 0 (choose) to ", kMaxThreads));
}

}  // namespace

ThreadBudget ThreadBudget::Split(int cpus) {
  cpus = std::max(cpus, 1);
  ThreadBudget budget;
  budget.transport = 1;  // sleeps in epoll when idle, so it takes no core of its own
  budget.worker = std::max(1, cpus / 4);
  budget.engine = std::max(1, cpus - budget.worker);
  return budget;
}

absl::StatusOr<ThreadBudget> ThreadBudget::FromConfig(int engine, int worker,
                                                      const MachineFiles& files) {
  if (absl::Status status = CheckCount("engine", engine); !status.ok()) return status;
  if (absl::Status status = CheckCount("worker", worker); !status.ok()) return status;
  const int cpus = EffectiveCpuCount(files);
  ThreadBudget budget = Split(cpus);
  if (worker > 0) {
    budget.worker = worker;
    budget.engine = std::max(1, cpus - worker);
  }
  if (engine > 0) budget.engine = engine;
  return budget;
}

}  // namespace baton
