// exp of fp32, written once for scalars (CUDA, tests) and for vectors (kernels/simd.h). C++17.
#pragma once

#include <cmath>

#include "kernels/convert_math.h"
#include "kernels/hd.h"

namespace baton {

// The vocabulary ExpT needs, for one float. simd.h gives the same for 16 lanes.
BATON_HD float FmaT(float a, float b, float c) { return fmaf(a, b, c); }
BATON_HD float MinT(float a, float b) { return a < b ? a : b; }
BATON_HD float MaxT(float a, float b) { return a > b ? a : b; }
BATON_HD float ZeroIfLess(float x, float limit, float value) { return x < limit ? 0.0f : value; }
// 2^n where t = n + 1.5 * 2^23.
BATON_HD float Pow2FromMagic(float t) { return BitsFloat((FloatBits(t) << 23) + 0x3f800000u); }
template <typename V>
BATON_HD V SplatT(float x) {
  return V(x);
}

// e^x with about 1 ulp of error. Saturates at e^88.02; below -87.33 the result is 0, so that
// exp(-inf) = 0; exp(0) is exactly 1; NaN stays NaN. Polynomial from Cephes' expf.
template <typename V>
BATON_HD V ExpT(V x) {
  const V in = x;
  x = MaxT(SplatT<V>(-87.33654f), MinT(SplatT<V>(88.02f), x));
  const V magic = SplatT<V>(12582912.0f);
  const V t = FmaT(x, SplatT<V>(1.44269504088896341f), magic);
  const V n = t - magic;
  V r = FmaT(n, SplatT<V>(-0.693359375f), x);
  r = FmaT(n, SplatT<V>(2.12194440e-4f), r);
  V p = SplatT<V>(1.9875691500e-4f);
  p = FmaT(p, r, SplatT<V>(1.3981999507e-3f));
  p = FmaT(p, r, SplatT<V>(8.3334519073e-3f));
  p = FmaT(p, r, SplatT<V>(4.1665795894e-2f));
  p = FmaT(p, r, SplatT<V>(1.6666665459e-1f));
  p = FmaT(p, r, SplatT<V>(5.0000001201e-1f));
  p = FmaT(p, r * r, r + SplatT<V>(1.0f));
  return ZeroIfLess(in, SplatT<V>(-87.33654f), p * Pow2FromMagic(t));
}

}  // namespace baton
