#include "bench/machine_peaks.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/cpu_features.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace baton {
namespace {

// Keeps a value alive without a store.
template <typename T>
void Use(const T& value) {
  asm volatile("" : : "m"(value) : "memory");
}

double Seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

constexpr int kChains = 12;  // latency 4 x 2 units, and some to spare; 14 of 16 registers

#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) void FmaLoop256(std::int64_t steps) {
  __m256 a[kChains];
  for (__m256& v : a) v = _mm256_set1_ps(1.0f);
  const __m256 x = _mm256_set1_ps(0.5f), y = _mm256_set1_ps(0.25f);
  for (std::int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (__m256& v : a) v = _mm256_fmadd_ps(v, x, y);
  }
  Use(a);
}

__attribute__((target("avx512f"))) void FmaLoop512(std::int64_t steps) {
  __m512 a[kChains];
  for (__m512& v : a) v = _mm512_set1_ps(1.0f);
  const __m512 x = _mm512_set1_ps(0.5f), y = _mm512_set1_ps(0.25f);
  for (std::int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
    for (__m512& v : a) v = _mm512_fmadd_ps(v, x, y);
  }
  Use(a);
}
#endif

// Sixteen lanes by the compiler's own means.
void FmaLoopPortable(std::int64_t steps) {
  float a[kChains][16];
  for (auto& chain : a) std::fill_n(chain, 16, 1.0f);
  for (std::int64_t i = 0; i < steps; ++i) {
    for (auto& chain : a) {
      for (float& v : chain) v = __builtin_fmaf(v, 0.5f, 0.25f);
    }
  }
  Use(a);
}

struct FmaLoop {
  void (*run)(std::int64_t steps);
  int lanes;
};

FmaLoop BestFmaLoop() {
#if defined(__x86_64__)
  if (BestIsa() == IsaLevel::kAvx512) return {FmaLoop512, 16};
  if (BestIsa() == IsaLevel::kAvx2) return {FmaLoop256, 8};
#endif
  return {FmaLoopPortable, 16};
}

double MeasureFma(Executor& executor) {
  const FmaLoop loop = BestFmaLoop();
  constexpr std::int64_t kSteps = 400'000;  // about a millisecond
  const int threads = executor.threads();
  double best = 0;
  for (int window = 0; window < 100; ++window) {
    const double start = Seconds();
    executor.ParallelFor(threads, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t i = begin; i < end; ++i) loop.run(kSteps);
    });
    best = std::max(best, threads * 2.0 * kChains * loop.lanes * kSteps / (Seconds() - start));
  }
  return best;
}

using Words = std::uint64_t __attribute__((vector_size(32)));

void ReadLoop(const Words* p, std::size_t n) {
  Words sum[8] = {};
  for (std::size_t i = 0; i < n; i += 8) {
#pragma GCC unroll 8
    for (std::size_t j = 0; j < 8; ++j) sum[j] += p[i + j];
  }
  Use(sum);
}

double MeasureRead(Executor& executor) {
  constexpr std::size_t kWords = (std::size_t{256} << 20) / sizeof(Words);
  constexpr std::size_t kPiece = (std::size_t{1} << 20) / sizeof(Words);
  constexpr std::size_t kWindow = kWords / 8;  // 32 MB a window, another one each time
  const std::vector<Words> data(kWords, Words{1, 2, 3, 4});
  double best = 0;
  for (std::size_t at = 0, pass = 0; pass < 32; ++pass, at = (at + kWindow) % kWords) {
    const double start = Seconds();
    executor.ParallelFor(kWindow / kPiece, 1, [&](std::int64_t begin, std::int64_t end) {
      const std::size_t first = static_cast<std::size_t>(begin) * kPiece;
      ReadLoop(data.data() + at + first, static_cast<std::size_t>(end - begin) * kPiece);
    });
    best = std::max(best, static_cast<double>(kWindow * sizeof(Words)) / (Seconds() - start));
  }
  return best;
}

}  // namespace

MachinePeaks MeasureMachinePeaks(Executor& executor) {
  return {MeasureRead(executor), MeasureFma(executor)};
}

}  // namespace baton
