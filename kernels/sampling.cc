#include "kernels/sampling.h"

#include "kernels/cpu_features.h"

namespace baton {

std::int64_t ArgMax(const float* x, std::int64_t n) {
  const float max = Kernels().max(x, n);
  for (std::int64_t i = 0; i < n; ++i) {
    if (x[i] == max) return i;
  }
  return -1;
}

}  // namespace baton
