#include "kernels/elementwise.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/cpu_features.h"

namespace baton {
namespace {

// Rows per piece so that a piece is worth handing over (about 16K elements).
std::int64_t RowGrain(std::int64_t d) {
  return std::max<std::int64_t>(1, 16384 / std::max<std::int64_t>(1, d));
}

}  // namespace

void RmsNorm(const float* x, std::int64_t ldx, const float* gamma, float eps, std::int64_t n,
             std::int64_t d, float* y, std::int64_t ldy, Executor& executor) {
  const KernelTable& kernels = Kernels();
  executor.ParallelFor(n, RowGrain(d), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      kernels.rms_norm(x + r * ldx, gamma, eps, d, y + r * ldy);
    }
  });
}

void Rope(float* x, std::int64_t ldx, const std::int32_t* positions, const float* inv_freq,
          float attention_scaling, int heads, int head_dim, std::int64_t n, Executor& executor) {
  const KernelTable& kernels = Kernels();
  const std::int64_t d = static_cast<std::int64_t>(heads) * head_dim;
  executor.ParallelFor(n, RowGrain(4 * d), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      kernels.rope(x + r * ldx, positions[r], inv_freq, attention_scaling, heads, head_dim);
    }
  });
}

void SiluMul(const float* gate, std::int64_t ldg, const float* up, std::int64_t ldu, std::int64_t n,
             std::int64_t d, float* y, std::int64_t ldy, Executor& executor) {
  const KernelTable& kernels = Kernels();
  executor.ParallelFor(n, RowGrain(2 * d), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      kernels.silu_mul(gate + r * ldg, up + r * ldu, d, y + r * ldy);
    }
  });
}

void AddRows(float* x, std::int64_t ldx, const float* y, std::int64_t ldy, std::int64_t n,
             std::int64_t d, Executor& executor) {
  const KernelTable& kernels = Kernels();
  executor.ParallelFor(n, RowGrain(d), [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) kernels.add(x + r * ldx, y + r * ldy, d);
  });
}

float LogSumExp(const float* x, std::int64_t d) {
  const KernelTable& kernels = Kernels();
  const float max = kernels.max(x, d);
  if (std::isinf(max)) return max;
  return static_cast<float>(max + std::log(kernels.sum_exp(x, max, d)));
}

}  // namespace baton
