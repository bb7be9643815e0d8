#include "kernels/quantize.h"

#include <algorithm>
#include <cmath>

#include "kernels/convert_math.h"

namespace baton {
namespace {

// Truncated; NaN gives the least.
template <typename T>
T Code(float x, float least, float most) {
  return static_cast<T>(x > least ? std::min(x, most) : least);
}

}  // namespace

BlockQ8_0 QuantizeInt8(const float* x, int n) {
  BlockQ8_0 b = {};
  float most = 0;
  for (int i = 0; i < n; ++i) most = std::max(most, std::fabs(x[i]));
  const float d = most / 127.0f;
  const float inverse = d == 0 ? 0.0f : 1.0f / d;
  b.d = FloatToHalf(d);
  for (int i = 0; i < n; ++i) {
    b.qs[i] = Code<std::int8_t>(std::round(x[i] * inverse), -127.0f, 127.0f);
  }
  return b;
}

BlockQ4_1 QuantizeInt4(const float* x, int n) {
  BlockQ4_1 b = {};
  const auto [min, max] = std::minmax_element(x, x + n);
  const float m = *min;
  const float d = (*max - m) / 15.0f;
  const float inverse = d == 0 ? 0.0f : 1.0f / d;
  b.d = FloatToHalf(d);
  b.m = FloatToHalf(m);
  for (int i = 0; i < n; ++i) {
    const auto code = Code<std::uint8_t>((x[i] - m) * inverse + 0.5f, 0.0f, 15.0f);
    const int at = i % (kQuantBlock / 2);
    b.qs[at] = static_cast<std::uint8_t>(b.qs[at] | code << (i < kQuantBlock / 2 ? 0 : 4));
  }
  return b;
}

}  // namespace baton
