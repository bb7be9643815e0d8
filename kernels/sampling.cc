#include "kernels/sampling.h"

#include <cmath>

#include "kernels/cpu_features.h"
#include "kernels/exp_math.h"

namespace baton {

std::int64_t ArgMax(const float* x, std::int64_t n) {
  const float max = Kernels().max(x, n);
  for (std::int64_t i = 0; i < n; ++i) {
    if (x[i] == max) return i;
  }
  return -1;
}

bool Softmax(const float* x, std::int64_t n, float temperature, float* p) {
  const float max = Kernels().max(x, n);
  if (!std::isfinite(max)) return false;
  const float inv = 1.0f / temperature;
  double sum = 0;
  for (std::int64_t i = 0; i < n; ++i) {
    p[i] = ExpT((x[i] - max) * inv);
    sum += p[i];
  }
  const float scale = static_cast<float>(1.0 / sum);
  for (std::int64_t i = 0; i < n; ++i) p[i] *= scale;
  return true;
}

}  // namespace baton
