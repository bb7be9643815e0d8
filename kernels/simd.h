// Sixteen fp32 lanes on whatever the translation unit is compiled for. Internal to the room.
//
// AVX-512: one register. AVX2: two. BATON_SIMD_GENERIC or another CPU: plain loops. All levels
// give the same bits. Everything lives in an unnamed namespace on purpose: this header is
// compiled with several instruction sets in one program, and the copies must not be merged.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/convert_math.h"
#include "kernels/exp_math.h"
#include "kernels/hd.h"

#if !defined(BATON_SIMD_GENERIC) && defined(__AVX512F__) && defined(__AVX512BW__) && \
    defined(__AVX512VL__) && defined(__AVX512DQ__)
#define BATON_SIMD_AVX512 1
#include <immintrin.h>
#elif !defined(BATON_SIMD_GENERIC) && defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define BATON_SIMD_AVX2 1
#include <immintrin.h>
#endif

#define BATON_V static inline __attribute__((always_inline))

namespace baton {
namespace {

using Mask16 = std::uint16_t;  // bit i: lane i

#if defined(BATON_SIMD_AVX512)

struct F16 {
  __m512 v;
};
BATON_V F16 Splat(float x) { return {_mm512_set1_ps(x)}; }
BATON_V F16 Load(const float* p) { return {_mm512_loadu_ps(p)}; }
BATON_V void Store(float* p, F16 a) { _mm512_storeu_ps(p, a.v); }
BATON_V F16 LoadN(const float* p, int n) {
  return {_mm512_maskz_loadu_ps(static_cast<__mmask16>((1u << n) - 1), p)};
}
BATON_V void StoreN(float* p, F16 a, int n) {
  _mm512_mask_storeu_ps(p, static_cast<__mmask16>((1u << n) - 1), a.v);
}
BATON_V F16 LoadBf16(const std::uint16_t* p) {
  const __m256i h = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
BATON_V F16 LoadHalf(const std::uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
// Eight elements; the upper lanes are zero.
BATON_V F16 LoadBf16x8(const std::uint16_t* p) {
  const __m256i h = _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16))};
}
BATON_V F16 LoadHalfx8(const std::uint16_t* p) {
  return {_mm512_cvtph_ps(
      _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))))};
}
// Sixteen 32-bit words, each the bf16 of column c (low half) and of column c + 16 (high half).
BATON_V void LoadBf16Pair(const std::uint32_t* p, F16* lo, F16* hi) {
  const __m512i w = _mm512_loadu_si512(p);
  lo->v = _mm512_castsi512_ps(_mm512_slli_epi32(w, 16));
  hi->v = _mm512_castsi512_ps(_mm512_and_si512(w, _mm512_set1_epi32(-65536)));
}
BATON_V F16 FmaT(F16 a, F16 b, F16 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
BATON_V F16 operator+(F16 a, F16 b) { return {_mm512_add_ps(a.v, b.v)}; }
BATON_V F16 operator-(F16 a, F16 b) { return {_mm512_sub_ps(a.v, b.v)}; }
BATON_V F16 operator*(F16 a, F16 b) { return {_mm512_mul_ps(a.v, b.v)}; }
BATON_V F16 operator/(F16 a, F16 b) { return {_mm512_div_ps(a.v, b.v)}; }
BATON_V F16 MinT(F16 a, F16 b) { return {_mm512_min_ps(a.v, b.v)}; }
BATON_V F16 MaxT(F16 a, F16 b) { return {_mm512_max_ps(a.v, b.v)}; }
BATON_V F16 ZeroIfLess(F16 x, F16 limit, F16 value) {
  const __mmask16 keep = _mm512_cmp_ps_mask(x.v, limit.v, _CMP_NLT_UQ);
  return {_mm512_maskz_mov_ps(keep, value.v)};
}
BATON_V F16 Pow2FromMagic(F16 t) {
  const __m512i n = _mm512_slli_epi32(_mm512_castps_si512(t.v), 23);
  return {_mm512_castsi512_ps(_mm512_add_epi32(n, _mm512_set1_epi32(0x3f800000)))};
}
// mask ? a : b
BATON_V F16 Select(Mask16 mask, F16 a, F16 b) { return {_mm512_mask_blend_ps(mask, b.v, a.v)}; }
// Lanes with limit_lo < pos <= limit_hi.
BATON_V Mask16 InRange(const std::int32_t* pos, std::int32_t limit_lo, std::int32_t limit_hi) {
  const __m512i p = _mm512_loadu_si512(pos);
  return _mm512_mask_cmpgt_epi32_mask(_mm512_cmple_epi32_mask(p, _mm512_set1_epi32(limit_hi)), p,
                                      _mm512_set1_epi32(limit_lo));
}
BATON_V void Halves(F16 a, float* s8, bool max) {
  const __m256 lo = _mm512_castps512_ps256(a.v);
  const __m256 hi = _mm512_extractf32x8_ps(a.v, 1);
  _mm256_storeu_ps(s8, max ? _mm256_max_ps(lo, hi) : _mm256_add_ps(lo, hi));
}
struct D16 {
  __m512d lo, hi;
};
BATON_V D16 ZeroD() { return {_mm512_setzero_pd(), _mm512_setzero_pd()}; }
BATON_V void AddTo(D16* d, F16 a) {
  d->lo = _mm512_add_pd(d->lo, _mm512_cvtps_pd(_mm512_castps512_ps256(a.v)));
  d->hi = _mm512_add_pd(d->hi, _mm512_cvtps_pd(_mm512_extractf32x8_ps(a.v, 1)));
}
BATON_V void StoreD(double* p, const D16& d) {
  _mm512_storeu_pd(p, d.lo);
  _mm512_storeu_pd(p + 8, d.hi);
}
// Sixteen 32-bit integers, for codes on their way to fp32.
struct I16 {
  __m512i v;
};
BATON_V I16 LoadWords(const std::byte* p) { return {_mm512_loadu_si512(p)}; }
BATON_V I16 LoadInt8(const std::byte* p) {
  return {_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
BATON_V I16 LoadUint8(const std::byte* p) {
  return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
}
BATON_V I16 LoadUint16(const std::byte* p) {
  return {_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}
template <int N>
BATON_V I16 ShiftRight(I16 a) {
  return {_mm512_srli_epi32(a.v, N)};
}
template <int N>
BATON_V I16 ShiftLeft(I16 a) {
  return {_mm512_slli_epi32(a.v, N)};
}
// a | (b & mask)
BATON_V I16 OrMasked(I16 a, I16 b, int mask) {
  return {_mm512_or_si512(a.v, _mm512_and_si512(b.v, _mm512_set1_epi32(mask)))};
}
BATON_V I16 And(I16 a, int mask) { return {_mm512_and_si512(a.v, _mm512_set1_epi32(mask))}; }
BATON_V F16 ToFloat(I16 a) { return {_mm512_cvtepi32_ps(a.v)}; }
// The low four bits of each lane: one look-up instead of a mask and a conversion.
BATON_V F16 NibbleToFloat(I16 a) {
  const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  return {_mm512_permutexvar_ps(a.v, table)};
}
inline constexpr int kGemmRows = 12;  // accumulators: 12 x 2 of 32 registers
inline constexpr int kWholePanelRows = 12;
inline constexpr int kQuantRows = 4;  // rows of a tile that decodes codes in registers
inline constexpr int kQuantPanels = 2;
inline constexpr int kScoreRows = 6;  // 6 rows x 4 vectors
inline constexpr int kVectors = 4;

#elif defined(BATON_SIMD_AVX2)

struct F16 {
  __m256 a, b;
};
BATON_V F16 Splat(float x) { return {_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
BATON_V F16 Load(const float* p) { return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)}; }
BATON_V void Store(float* p, F16 x) {
  _mm256_storeu_ps(p, x.a);
  _mm256_storeu_ps(p + 8, x.b);
}
BATON_V F16 LoadN(const float* p, int n) {
  alignas(32) float buffer[16] = {};
  memcpy(buffer, p, static_cast<std::size_t>(n) * 4);
  return Load(buffer);
}
BATON_V void StoreN(float* p, F16 x, int n) {
  alignas(32) float buffer[16];
  Store(buffer, x);
  memcpy(p, buffer, static_cast<std::size_t>(n) * 4);
}
BATON_V __m256 Bf16x8(const std::uint16_t* p) {
  const __m128i h = _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}
BATON_V __m256 Halfx8(const std::uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}
BATON_V F16 LoadBf16(const std::uint16_t* p) { return {Bf16x8(p), Bf16x8(p + 8)}; }
BATON_V F16 LoadHalf(const std::uint16_t* p) { return {Halfx8(p), Halfx8(p + 8)}; }
BATON_V F16 LoadBf16x8(const std::uint16_t* p) { return {Bf16x8(p), _mm256_setzero_ps()}; }
BATON_V F16 LoadHalfx8(const std::uint16_t* p) { return {Halfx8(p), _mm256_setzero_ps()}; }
BATON_V void LoadBf16Pair(const std::uint32_t* p, F16* lo, F16* hi) {
  const __m256i w0 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  const __m256i w1 = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p + 8));
  const __m256i high = _mm256_set1_epi32(-65536);
  lo->a = _mm256_castsi256_ps(_mm256_slli_epi32(w0, 16));
  lo->b = _mm256_castsi256_ps(_mm256_slli_epi32(w1, 16));
  hi->a = _mm256_castsi256_ps(_mm256_and_si256(w0, high));
  hi->b = _mm256_castsi256_ps(_mm256_and_si256(w1, high));
}
BATON_V F16 FmaT(F16 x, F16 y, F16 z) {
  return {_mm256_fmadd_ps(x.a, y.a, z.a), _mm256_fmadd_ps(x.b, y.b, z.b)};
}
BATON_V F16 operator+(F16 x, F16 y) { return {_mm256_add_ps(x.a, y.a), _mm256_add_ps(x.b, y.b)}; }
BATON_V F16 operator-(F16 x, F16 y) { return {_mm256_sub_ps(x.a, y.a), _mm256_sub_ps(x.b, y.b)}; }
BATON_V F16 operator*(F16 x, F16 y) { return {_mm256_mul_ps(x.a, y.a), _mm256_mul_ps(x.b, y.b)}; }
BATON_V F16 operator/(F16 x, F16 y) { return {_mm256_div_ps(x.a, y.a), _mm256_div_ps(x.b, y.b)}; }
BATON_V F16 MinT(F16 x, F16 y) { return {_mm256_min_ps(x.a, y.a), _mm256_min_ps(x.b, y.b)}; }
BATON_V F16 MaxT(F16 x, F16 y) { return {_mm256_max_ps(x.a, y.a), _mm256_max_ps(x.b, y.b)}; }
BATON_V F16 ZeroIfLess(F16 x, F16 limit, F16 value) {
  return {_mm256_and_ps(_mm256_cmp_ps(x.a, limit.a, _CMP_NLT_UQ), value.a),
          _mm256_and_ps(_mm256_cmp_ps(x.b, limit.b, _CMP_NLT_UQ), value.b)};
}
BATON_V __m256 Pow2x8(__m256 t) {
  const __m256i n = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
  return _mm256_castsi256_ps(_mm256_add_epi32(n, _mm256_set1_epi32(0x3f800000)));
}
BATON_V F16 Pow2FromMagic(F16 t) { return {Pow2x8(t.a), Pow2x8(t.b)}; }
BATON_V __m256 ExpandMask(std::uint32_t bits) {
  const __m256i lane = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i m = _mm256_and_si256(_mm256_set1_epi32(static_cast<int>(bits)), lane);
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(m, lane));
}
BATON_V F16 Select(Mask16 mask, F16 x, F16 y) {
  return {_mm256_blendv_ps(y.a, x.a, ExpandMask(mask & 0xffu)),
          _mm256_blendv_ps(y.b, x.b, ExpandMask(mask >> 8))};
}
BATON_V unsigned InRange8(const std::int32_t* pos, std::int32_t lo, std::int32_t hi) {
  const __m256i p = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pos));
  const __m256i above = _mm256_cmpgt_epi32(p, _mm256_set1_epi32(hi));
  const __m256i over_lo = _mm256_cmpgt_epi32(p, _mm256_set1_epi32(lo));
  return static_cast<unsigned>(
      _mm256_movemask_ps(_mm256_castsi256_ps(_mm256_andnot_si256(above, over_lo))));
}
BATON_V Mask16 InRange(const std::int32_t* pos, std::int32_t limit_lo, std::int32_t limit_hi) {
  return static_cast<Mask16>(InRange8(pos, limit_lo, limit_hi) |
                             InRange8(pos + 8, limit_lo, limit_hi) << 8);
}
BATON_V void Halves(F16 x, float* s8, bool max) {
  _mm256_storeu_ps(s8, max ? _mm256_max_ps(x.a, x.b) : _mm256_add_ps(x.a, x.b));
}
struct D16 {
  __m256d d[4];
};
BATON_V D16 ZeroD() {
  const __m256d z = _mm256_setzero_pd();
  return {{z, z, z, z}};
}
BATON_V void AddTo(D16* d, F16 x) {
  d->d[0] = _mm256_add_pd(d->d[0], _mm256_cvtps_pd(_mm256_castps256_ps128(x.a)));
  d->d[1] = _mm256_add_pd(d->d[1], _mm256_cvtps_pd(_mm256_extractf128_ps(x.a, 1)));
  d->d[2] = _mm256_add_pd(d->d[2], _mm256_cvtps_pd(_mm256_castps256_ps128(x.b)));
  d->d[3] = _mm256_add_pd(d->d[3], _mm256_cvtps_pd(_mm256_extractf128_ps(x.b, 1)));
}
BATON_V void StoreD(double* p, const D16& d) {
  for (int i = 0; i < 4; ++i) _mm256_storeu_pd(p + 4 * i, d.d[i]);
}
// Sixteen 32-bit integers, for codes on their way to fp32.
struct I16 {
  __m256i a, b;
};
BATON_V __m256i Words(const std::byte* p) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
}
BATON_V __m128i Low8(const std::byte* p) {
  return _mm_loadl_epi64(reinterpret_cast<const __m128i*>(p));
}
BATON_V I16 LoadWords(const std::byte* p) { return {Words(p), Words(p + 32)}; }
BATON_V I16 LoadInt8(const std::byte* p) {
  return {_mm256_cvtepi8_epi32(Low8(p)), _mm256_cvtepi8_epi32(Low8(p + 8))};
}
BATON_V I16 LoadUint8(const std::byte* p) {
  return {_mm256_cvtepu8_epi32(Low8(p)), _mm256_cvtepu8_epi32(Low8(p + 8))};
}
BATON_V I16 LoadUint16(const std::byte* p) {
  const __m128i* h = reinterpret_cast<const __m128i*>(p);
  return {_mm256_cvtepu16_epi32(_mm_loadu_si128(h)), _mm256_cvtepu16_epi32(_mm_loadu_si128(h + 1))};
}
template <int N>
BATON_V I16 ShiftRight(I16 x) {
  return {_mm256_srli_epi32(x.a, N), _mm256_srli_epi32(x.b, N)};
}
template <int N>
BATON_V I16 ShiftLeft(I16 x) {
  return {_mm256_slli_epi32(x.a, N), _mm256_slli_epi32(x.b, N)};
}
BATON_V I16 And(I16 x, int mask) {
  const __m256i m = _mm256_set1_epi32(mask);
  return {_mm256_and_si256(x.a, m), _mm256_and_si256(x.b, m)};
}
// x | (y & mask)
BATON_V I16 OrMasked(I16 x, I16 y, int mask) {
  const I16 m = And(y, mask);
  return {_mm256_or_si256(x.a, m.a), _mm256_or_si256(x.b, m.b)};
}
BATON_V F16 ToFloat(I16 x) { return {_mm256_cvtepi32_ps(x.a), _mm256_cvtepi32_ps(x.b)}; }
// The low four bits of each lane.
BATON_V F16 NibbleToFloat(I16 x) { return ToFloat(And(x, 15)); }
// 6 x 16 features take 12 accumulators of 16 registers, 2 weights and an x. 3 x 32 need 17: one
// accumulator goes through memory at every step, which takes a third of the peak.
inline constexpr int kGemmRows = 6;
inline constexpr int kWholePanelRows = 2;  // rows up to which a tile spans a panel's 32 features
inline constexpr int kQuantRows = 2;       // rows of a tile that decodes codes in registers
inline constexpr int kQuantPanels = 1;
inline constexpr int kScoreRows = 3;
inline constexpr int kVectors = 2;

#else

struct F16 {
  float v[16];
};
#define BATON_LANES(expr)                         \
  F16 out;                                        \
  for (int i = 0; i < 16; ++i) out.v[i] = (expr); \
  return out
BATON_V F16 Splat(float x) { BATON_LANES(x); }
BATON_V F16 Load(const float* p) { BATON_LANES(p[i]); }
BATON_V void Store(float* p, F16 a) { memcpy(p, a.v, 64); }
BATON_V F16 LoadN(const float* p, int n) { BATON_LANES(i < n ? p[i] : 0.0f); }
BATON_V void StoreN(float* p, F16 a, int n) { memcpy(p, a.v, static_cast<std::size_t>(n) * 4); }
BATON_V F16 LoadBf16(const std::uint16_t* p) { BATON_LANES(Bf16ToFloat(p[i])); }
BATON_V F16 LoadHalf(const std::uint16_t* p) { BATON_LANES(HalfToFloat(p[i])); }
BATON_V F16 LoadBf16x8(const std::uint16_t* p) { BATON_LANES(i < 8 ? Bf16ToFloat(p[i]) : 0.0f); }
BATON_V F16 LoadHalfx8(const std::uint16_t* p) { BATON_LANES(i < 8 ? HalfToFloat(p[i]) : 0.0f); }
BATON_V void LoadBf16Pair(const std::uint32_t* p, F16* lo, F16* hi) {
  for (int i = 0; i < 16; ++i) {
    lo->v[i] = BitsFloat(p[i] << 16);
    hi->v[i] = BitsFloat(p[i] & 0xffff0000u);
  }
}
BATON_V F16 FmaT(F16 a, F16 b, F16 c) { BATON_LANES(__builtin_fmaf(a.v[i], b.v[i], c.v[i])); }
BATON_V F16 operator+(F16 a, F16 b) { BATON_LANES(a.v[i] + b.v[i]); }
BATON_V F16 operator-(F16 a, F16 b) { BATON_LANES(a.v[i] - b.v[i]); }
BATON_V F16 operator*(F16 a, F16 b) { BATON_LANES(a.v[i] * b.v[i]); }
BATON_V F16 operator/(F16 a, F16 b) { BATON_LANES(a.v[i] / b.v[i]); }
BATON_V F16 MinT(F16 a, F16 b) { BATON_LANES(a.v[i] < b.v[i] ? a.v[i] : b.v[i]); }
BATON_V F16 MaxT(F16 a, F16 b) { BATON_LANES(a.v[i] > b.v[i] ? a.v[i] : b.v[i]); }
BATON_V F16 ZeroIfLess(F16 x, F16 limit, F16 value) {
  BATON_LANES(x.v[i] < limit.v[i] ? 0.0f : value.v[i]);
}
BATON_V F16 Pow2FromMagic(F16 t) {
  BATON_LANES(BitsFloat((FloatBits(t.v[i]) << 23) + 0x3f800000u));
}
BATON_V F16 Select(Mask16 mask, F16 a, F16 b) {
  BATON_LANES((mask >> i & 1) != 0 ? a.v[i] : b.v[i]);
}
BATON_V Mask16 InRange(const std::int32_t* pos, std::int32_t limit_lo, std::int32_t limit_hi) {
  unsigned m = 0;
  for (int i = 0; i < 16; ++i) m |= (pos[i] > limit_lo && pos[i] <= limit_hi ? 1u : 0u) << i;
  return static_cast<Mask16>(m);
}
BATON_V void Halves(F16 a, float* s8, bool max) {
  for (int i = 0; i < 8; ++i) {
    const float hi = a.v[i + 8];
    s8[i] = max ? (a.v[i] > hi ? a.v[i] : hi) : a.v[i] + hi;
  }
}
struct D16 {
  double v[16];
};
BATON_V D16 ZeroD() { return {}; }
BATON_V void AddTo(D16* d, F16 a) {
  for (int i = 0; i < 16; ++i) d->v[i] += a.v[i];
}
BATON_V void StoreD(double* p, const D16& d) { memcpy(p, d.v, sizeof(d.v)); }
// Sixteen 32-bit integers, for codes on their way to fp32.
struct I16 {
  std::uint32_t v[16];
};
#define BATON_INT_LANES(expr)                                               \
  I16 out;                                                                  \
  for (int i = 0; i < 16; ++i) out.v[i] = static_cast<std::uint32_t>(expr); \
  return out
BATON_V I16 LoadWords(const std::byte* p) {
  I16 out;
  memcpy(out.v, p, sizeof(out.v));
  return out;
}
BATON_V I16 LoadInt8(const std::byte* p) {
  BATON_INT_LANES(static_cast<std::int32_t>(static_cast<std::int8_t>(p[i])));
}
BATON_V I16 LoadUint8(const std::byte* p) { BATON_INT_LANES(p[i]); }
BATON_V I16 LoadUint16(const std::byte* p) {
  std::uint16_t h[16];
  memcpy(h, p, sizeof(h));
  BATON_INT_LANES(h[i]);
}
template <int N>
BATON_V I16 ShiftRight(I16 a) {
  BATON_INT_LANES(a.v[i] >> N);
}
template <int N>
BATON_V I16 ShiftLeft(I16 a) {
  BATON_INT_LANES(a.v[i] << N);
}
BATON_V I16 And(I16 a, int mask) { BATON_INT_LANES(a.v[i] & static_cast<std::uint32_t>(mask)); }
// a | (b & mask)
BATON_V I16 OrMasked(I16 a, I16 b, int mask) {
  BATON_INT_LANES(a.v[i] | (b.v[i] & static_cast<std::uint32_t>(mask)));
}
BATON_V F16 ToFloat(I16 a) { BATON_LANES(static_cast<float>(static_cast<std::int32_t>(a.v[i]))); }
// The low four bits of each lane.
BATON_V F16 NibbleToFloat(I16 a) { return ToFloat(And(a, 15)); }
#undef BATON_INT_LANES
#undef BATON_LANES
inline constexpr int kGemmRows = 2;
inline constexpr int kWholePanelRows = 2;
inline constexpr int kQuantRows = 1;
inline constexpr int kQuantPanels = 1;
inline constexpr int kScoreRows = 2;
inline constexpr int kVectors = 2;

#endif

// Reductions, one tree on every level: lane i with i + 8, then + 4, + 2, + 1.
BATON_V float ReduceAdd(F16 a) {
  float s[8];
  Halves(a, s, false);
  return ((s[0] + s[4]) + (s[2] + s[6])) + ((s[1] + s[5]) + (s[3] + s[7]));
}
BATON_V float ReduceMax(F16 a) {
  float s[8];
  Halves(a, s, true);
  float m = s[0];
  for (int i = 1; i < 8; ++i) m = s[i] > m ? s[i] : m;
  return m;
}
BATON_V double ReduceAdd(const D16& d) {
  double s[16];
  StoreD(s, d);
  double sum = 0;
  for (double x : s) sum += x;
  return sum;
}

}  // namespace

// In the enclosing namespace: ExpT and friends find it by name at their definition.
template <>
BATON_HD F16 SplatT<F16>(float x) {
  return Splat(x);
}

}  // namespace baton
