// Per-element arithmetic of the element-wise ops, shared by CPU and CUDA. C++17.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/exp_math.h"
#include "kernels/hd.h"

namespace baton {

// silu(x) = x / (1 + e^-x).
template <typename V>
BATON_HD V SiluT(V x) {
  return x / (SplatT<V>(1.0f) + ExpT<V>(SplatT<V>(0.0f) - x));
}

// One element of RmsNorm: (x * inv_rms) * gamma, in HF's order.
template <typename V>
BATON_HD V RmsNormT(V x, V inv_rms, V gamma) {
  return x * inv_rms * gamma;
}

struct SinCos {
  float sin;
  float cos;
};

// sin and cos of an fp32 angle, rounded from a double computation (error below 0.501 ulp for
// |x| < 2^25). Free of branches, so that loops over it vectorise.
BATON_HD SinCos PreciseSinCos(float angle) {
  const double x = angle;
  const double magic = 6755399441055744.0;  // 1.5 * 2^52
  const double t = x * 0.63661977236758134308 + magic;
  const double n = t - magic;
  double r = x - n * 1.57079632673412561417;  // pi/2, first 33 bits: n * it is exact
  r = r - n * 6.07710050650619224932e-11;     // pi/2, the rest
  const double r2 = r * r;
  double s = -2.50507602534068634195e-08;
  s = s * r2 + 2.75573137070700676789e-06;
  s = s * r2 - 1.98412698298579493134e-04;
  s = s * r2 + 8.33333333332248946124e-03;
  s = s * r2 - 1.66666666666666324348e-01;
  s = r + r * r2 * s;
  double c = 2.08757232129817482790e-09;
  c = c * r2 - 2.75573143513906633035e-07;
  c = c * r2 + 2.48015872894767294178e-05;
  c = c * r2 - 1.38888888888741095749e-03;
  c = c * r2 + 4.16666666666666019037e-02;
  c = 1.0 - 0.5 * r2 + r2 * r2 * c;
  std::int64_t q;
  memcpy(&q, &t, 8);
  const double sq = (q & 1) != 0 ? c : s;
  const double cq = (q & 1) != 0 ? s : c;
  return {static_cast<float>((q & 2) != 0 ? -sq : sq),
          static_cast<float>(((q + 1) & 2) != 0 ? -cq : cq)};
}

// HF's rotation of the pair (i, i + head_dim / 2); products and sums are rounded one by one.
template <typename V>
struct RopePair {
  V lo;
  V hi;
};
template <typename V>
BATON_HD RopePair<V> RotatePair(V lo, V hi, V cos, V sin) {
  return {lo * cos - hi * sin, hi * cos + lo * sin};
}

}  // namespace baton
