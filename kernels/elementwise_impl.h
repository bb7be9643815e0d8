// Row loops of the element-wise ops, compiled once per instruction set. Internal to the room.
#pragma once

#include <cmath>

#include "kernels/elementwise_math.h"
#include "kernels/isa_table.h"
#include "kernels/simd.h"

namespace baton {
namespace {

void RmsNormRow(const float* x, const float* gamma, float eps, std::int64_t d, float* y) {
  F16 sum[4] = {Splat(0.0f), Splat(0.0f), Splat(0.0f), Splat(0.0f)};
  std::int64_t i = 0;
  for (; i + 64 <= d; i += 64) {
    for (int j = 0; j < 4; ++j) {
      const F16 v = Load(x + i + 16 * j);
      sum[j] = FmaT(v, v, sum[j]);
    }
  }
  for (int j = 0; i < d; i += 16, ++j) {
    const int n = d - i < 16 ? static_cast<int>(d - i) : 16;
    const F16 v = LoadN(x + i, n);
    sum[j] = FmaT(v, v, sum[j]);
  }
  const float total = ReduceAdd((sum[0] + sum[2]) + (sum[1] + sum[3]));
  const float inv = 1.0f / __builtin_sqrtf(total / static_cast<float>(d) + eps);
  const F16 scale = Splat(inv);
  for (i = 0; i < d; i += 16) {
    const int n = d - i < 16 ? static_cast<int>(d - i) : 16;
    const F16 v = n == 16 ? Load(x + i) : LoadN(x + i, n);
    F16 out;
    if (gamma != nullptr) {
      out = RmsNormT(v, scale, n == 16 ? Load(gamma + i) : LoadN(gamma + i, n));
    } else {
      out = v * scale;
    }
    if (n == 16) {
      Store(y + i, out);
    } else {
      StoreN(y + i, out, n);
    }
  }
}

void RopeRow(float* x, std::int32_t position, const float* inv_freq, float scaling, int heads,
             int head_dim) {
  constexpr int kChunk = 64;
  float sin[kChunk], cos[kChunk];
  const int half = head_dim / 2;
  for (int begin = 0; begin < half; begin += kChunk) {
    const int n = half - begin < kChunk ? half - begin : kChunk;
    for (int i = 0; i < n; ++i) {
      const SinCos sc = PreciseSinCos(static_cast<float>(position) * inv_freq[begin + i]);
      sin[i] = sc.sin * scaling;
      cos[i] = sc.cos * scaling;
    }
    for (int h = 0; h < heads; ++h) {
      float* lo = x + static_cast<std::int64_t>(h) * head_dim + begin;
      float* hi = lo + half;
      for (int i = 0; i < n; i += 16) {
        const int m = n - i < 16 ? n - i : 16;
        const F16 a = LoadN(lo + i, m), b = LoadN(hi + i, m);
        const F16 cc = LoadN(cos + i, m), ss = LoadN(sin + i, m);
        const auto rotated = RotatePair(a, b, cc, ss);
        StoreN(lo + i, rotated.lo, m);
        StoreN(hi + i, rotated.hi, m);
      }
    }
  }
}

void SiluMulRow(const float* gate, const float* up, std::int64_t d, float* y) {
  std::int64_t i = 0;
  for (; i + 16 <= d; i += 16) Store(y + i, SiluT(Load(gate + i)) * Load(up + i));
  if (i < d) {
    const int n = static_cast<int>(d - i);
    StoreN(y + i, SiluT(LoadN(gate + i, n)) * LoadN(up + i, n), n);
  }
}

void AddRow(float* x, const float* y, std::int64_t d) {
  std::int64_t i = 0;
  for (; i + 16 <= d; i += 16) Store(x + i, Load(x + i) + Load(y + i));
  for (; i < d; ++i) x[i] += y[i];
}

// NaN is never the maximum; d == 0 or all NaN: -inf.
float MaxRow(const float* x, std::int64_t d) {
  const float lowest = -__builtin_inff();
  F16 m[4] = {Splat(lowest), Splat(lowest), Splat(lowest), Splat(lowest)};
  std::int64_t i = 0;
  for (; i + 64 <= d; i += 64) {
    for (int j = 0; j < 4; ++j) m[j] = MaxT(Load(x + i + 16 * j), m[j]);
  }
  float best = ReduceMax(MaxT(MaxT(m[0], m[2]), MaxT(m[1], m[3])));
  for (; i < d; ++i) best = x[i] > best ? x[i] : best;
  return best;
}

double SumExpRow(const float* x, float shift, std::int64_t d) {
  const F16 s = Splat(shift);
  D16 sum = ZeroD();
  std::int64_t i = 0;
  for (; i + 16 <= d; i += 16) AddTo(&sum, ExpT(Load(x + i) - s));
  double total = ReduceAdd(sum);
  for (; i < d; ++i) total += ExpT(x[i] - shift);
  return total;
}

}  // namespace
}  // namespace baton
