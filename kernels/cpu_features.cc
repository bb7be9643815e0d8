#include "kernels/cpu_features.h"

#include <atomic>

namespace baton {
namespace {

std::atomic<const KernelTable*>& Active() {
  static std::atomic<const KernelTable*> active{KernelsFor(BestIsa())};
  return active;
}

}  // namespace

const char* IsaName(IsaLevel level) {
  switch (level) {
    case IsaLevel::kGeneric:
      return "generic";
    case IsaLevel::kAvx2:
      return "avx2";
    case IsaLevel::kAvx512:
      return "avx512";
  }
  return "unknown";
}

IsaLevel BestIsa() {
  if (KernelsFor(IsaLevel::kAvx512) != nullptr) return IsaLevel::kAvx512;
  if (KernelsFor(IsaLevel::kAvx2) != nullptr) return IsaLevel::kAvx2;
  return IsaLevel::kGeneric;
}

const KernelTable* KernelsFor(IsaLevel level) {
  if (level == IsaLevel::kGeneric) return &GenericKernels();
#if defined(__x86_64__)
  const bool avx2 = __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  if (level == IsaLevel::kAvx2 && avx2) return &Avx2Kernels();
  const bool avx512 =
      __builtin_cpu_supports("avx512f") != 0 && __builtin_cpu_supports("avx512bw") != 0 &&
      __builtin_cpu_supports("avx512vl") != 0 && __builtin_cpu_supports("avx512dq") != 0 &&
      __builtin_cpu_supports("avx512cd") != 0;
  if (level == IsaLevel::kAvx512 && avx512) return &Avx512Kernels();
#endif
  return nullptr;
}

const KernelTable& Kernels() { return *Active().load(std::memory_order_relaxed); }

ScopedIsa::ScopedIsa(IsaLevel level) : before_(Active().exchange(KernelsFor(level))) {}
ScopedIsa::~ScopedIsa() { Active().store(before_); }

}  // namespace baton
