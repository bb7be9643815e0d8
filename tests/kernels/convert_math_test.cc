#include "kernels/convert_math.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace baton {
namespace {

// The nearest value of the small format by search, ties to even: independent of bit tricks.
template <typename Decode>
std::uint16_t NearestBySearch(float f, std::uint16_t lo, std::uint16_t hi, Decode decode) {
  const double x = std::fabs(static_cast<double>(f));
  while (hi - lo > 1) {
    const std::uint16_t mid = static_cast<std::uint16_t>((lo + hi) / 2);
    (decode(mid) <= x ? lo : hi) = mid;
  }
  const double below = x - decode(lo), above = decode(hi) - x;
  const std::uint16_t pick = below < above ? lo : above < below ? hi : (lo & 1) != 0 ? hi : lo;
  return static_cast<std::uint16_t>(pick | (std::signbit(f) ? 0x8000 : 0));
}

double HalfValue(std::uint16_t h) {
  const int e = h >> 10 & 31, m = h & 1023;
  if (e == 31) return 65536.0;  // where rounding to infinity begins, as the next value up
  return e == 0 ? std::ldexp(m, -24) : std::ldexp(1024 + m, e - 25);
}

TEST(ConvertMath, EveryHalfDecodesToItsValue) {
  for (int h = 0; h < 0x7c00; ++h) {
    const auto u = static_cast<std::uint16_t>(h);
    EXPECT_EQ(HalfToFloat(u), HalfValue(u)) << h;
    EXPECT_EQ(FloatToHalf(HalfToFloat(u)), u);
  }
  EXPECT_EQ(HalfToFloat(0x7c00), std::numeric_limits<float>::infinity());
  EXPECT_TRUE(std::isnan(HalfToFloat(0x7e01)));
  EXPECT_TRUE(std::signbit(HalfToFloat(0x8000)));
}

TEST(ConvertMath, HalfRoundsToNearestEven) {
  for (std::uint32_t u = 0; u < 0x7f800000u; u += 40961) {
    const float f = BitsFloat(u);
    const std::uint16_t got = FloatToHalf(-f);
    if (f >= 65520.0f) {
      EXPECT_EQ(got, 0xfc00) << f;
    } else {
      EXPECT_EQ(got, NearestBySearch(-f, 0, 0x7c00, HalfValue)) << f;
    }
  }
  EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(std::nanf("")))));
}

TEST(ConvertMath, Bf16RoundsToNearestEven) {
  const auto decode = [](std::uint16_t h) { return static_cast<double>(Bf16ToFloat(h)); };
  for (std::uint32_t u = 0; u < 0x7f7f0000u; u += 40961) {
    const float f = BitsFloat(u);
    EXPECT_EQ(FloatToBf16(f), NearestBySearch(f, 0, 0x7f7f, decode)) << f;
  }
  EXPECT_EQ(FloatToBf16(BitsFloat(0x3f808000)), 0x3f80) << "tie to even, down";
  EXPECT_EQ(FloatToBf16(BitsFloat(0x3f818000)), 0x3f82) << "tie to even, up";
  EXPECT_TRUE(std::isnan(Bf16ToFloat(FloatToBf16(BitsFloat(0x7f800001)))));
  EXPECT_EQ(FloatToBf16(-std::numeric_limits<float>::infinity()), 0xff80);
}

}  // namespace
}  // namespace baton
