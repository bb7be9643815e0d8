// Which instruction set the CPU kernels run on, chosen once at run time.
#pragma once

#include "kernels/isa_table.h"

namespace baton {

enum class IsaLevel { kGeneric = 0, kAvx2 = 1, kAvx512 = 2 };

const char* IsaName(IsaLevel level);

// The best level that this binary holds and this CPU runs.
IsaLevel BestIsa();

// The kernels of `level`; null when the binary or the CPU lacks it.
const KernelTable* KernelsFor(IsaLevel level);

// The kernels in use: BestIsa() unless a ScopedIsa is alive.
const KernelTable& Kernels();

// Test seam: all kernels run at `level` (which KernelsFor must know) until destruction.
class ScopedIsa {
 public:
  explicit ScopedIsa(IsaLevel level);
  ~ScopedIsa();
  ScopedIsa(const ScopedIsa&) = delete;
  ScopedIsa& operator=(const ScopedIsa&) = delete;

 private:
  const KernelTable* before_;
};

}  // namespace baton
