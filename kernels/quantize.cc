#include "kernels/quantize.h"

#include <algorithm>
#include <cmath>

#include "kernels/codes_math.h"

namespace baton {

BlockQ8_0 QuantizeInt8(const float* x, int n) {
  BlockQ8_0 b = {};
  float most = 0;
  for (int i = 0; i < n; ++i) most = std::max(most, std::fabs(x[i]));
  const float d = Int8Scale(most), inverse = InverseScale(d);
  b.d = FloatToHalf(d);
  for (int i = 0; i < n; ++i) {
    b.qs[i] = static_cast<std::int8_t>(Int8Code(x[i], inverse));
  }
  return b;
}

BlockQ4_1 QuantizeInt4(const float* x, int n) {
  BlockQ4_1 b = {};
  const auto [min, max] = std::minmax_element(x, x + n);
  const float m = *min;
  const float d = Int4Scale(m, *max), inverse = InverseScale(d);
  b.d = FloatToHalf(d);
  b.m = FloatToHalf(m);
  for (int i = 0; i < n; ++i) {
    const int code = Int4Code(x[i], m, inverse);
    const int at = i % (kQuantBlock / 2);
    b.qs[at] = static_cast<std::uint8_t>(b.qs[at] | code << (i < kQuantBlock / 2 ? 0 : 4));
  }
  return b;
}

}  // namespace baton
