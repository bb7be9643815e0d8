#include "common/scd/q4_kv.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>

#include "kernels/codes_math.h"
#include "kernels/element.h"

namespace baton {
namespace {

constexpr float kLargestHalf = 65504.0f;

// A group's scale in the making: exact for the codes, rounded for whoever decodes.
struct Scale {
  float min;
  float inverse;

  static Scale Of(float min, float max, std::byte* stored) {
    const float d = Int4Scale(min, max);
    const std::uint16_t halves[2] = {FloatToHalf(std::min(d, kLargestHalf)),
                                     FloatToHalf(std::clamp(min, -kLargestHalf, kLargestHalf))};
    std::memcpy(stored, halves, sizeof(halves));
    return {min, InverseScale(d)};
  }
  int Code(float x) const { return Int4Code(x, min, inverse); }
};

struct StoredScale {
  float d;
  float m;

  explicit StoredScale(const std::byte* stored) {
    std::uint16_t halves[2];
    std::memcpy(halves, stored, sizeof(halves));
    d = HalfToFloat(halves[0]);
    m = HalfToFloat(halves[1]);
  }
};

template <DType D>
const Element<D>* Elements(const std::byte* at) {
  return reinterpret_cast<const Element<D>*>(at);
}

// `k`: [2] keys of a page, [head_dim][16].
template <DType D>
void EncodeKeys(int head_dim, const std::array<const Element<D>*, 2>& k, int first_row,
                std::byte* out) {
  std::byte* codes = out + 4 * head_dim;
  for (int c = 0; c < head_dim; ++c) {
    float x[kQ4GroupRows];
    for (int r = 0; r < kQ4GroupRows; ++r) {
      x[r] = ToFloat<D>(k[r / kPageRows][c * kPageRows + r % kPageRows]);
    }
    const auto [min, max] = std::minmax_element(x + first_row, x + kQ4GroupRows);
    const Scale scale = Scale::Of(*min, *max, out + 4 * c);
    for (int j = 0; j < kPageRows; ++j) {
      codes[c * kPageRows + j] =
          static_cast<std::byte>(scale.Code(x[j]) | scale.Code(x[j + kPageRows]) << 4);
    }
  }
}

// `v`: [2] values of a page, [16][head_dim].
template <DType D>
void EncodeValues(int head_dim, const std::array<const Element<D>*, 2>& v, std::byte* out) {
  std::byte* codes = out + 4 * kQ4GroupRows;
  const int half = head_dim / 2;
  for (int r = 0; r < kQ4GroupRows; ++r) {
    const Element<D>* row = v[r / kPageRows] + r % kPageRows * head_dim;
    float min = ToFloat<D>(row[0]);
    float max = min;
    for (int c = 1; c < head_dim; ++c) {
      min = std::min(min, ToFloat<D>(row[c]));
      max = std::max(max, ToFloat<D>(row[c]));
    }
    const Scale scale = Scale::Of(min, max, out + 4 * r);
    for (int j = 0; j < half; ++j) {
      codes[r * half + j] = static_cast<std::byte>(scale.Code(ToFloat<D>(row[j])) |
                                                   scale.Code(ToFloat<D>(row[j + half])) << 4);
    }
  }
}

template <DType D>
void Encode(const KvPageLayout& layout, const std::byte* first, const std::byte* second,
            int first_row, std::byte* keys, std::byte* values) {
  EncodeKeys<D>(layout.head_dim,
                {Elements<D>(first + layout.k_offset()), Elements<D>(second + layout.k_offset())},
                first_row, keys);
  EncodeValues<D>(layout.head_dim,
                  {Elements<D>(first + layout.v_offset()), Elements<D>(second + layout.v_offset())},
                  values);
}

template <DType D>
Element<D> Decode(int code, const StoredScale& s) {
  return FromFloat<D>(DecodeInt4(static_cast<float>(code), s.d, s.m));
}

template <DType D>
void DecodePage(const KvPageLayout& layout, const std::byte* keys, const std::byte* values,
                int half, std::byte* rows) {
  const int head_dim = layout.head_dim;
  const auto* key_codes = reinterpret_cast<const std::uint8_t*>(keys + 4 * head_dim);
  auto* k = reinterpret_cast<Element<D>*>(rows);
  for (int c = 0; c < head_dim; ++c) {
    const StoredScale scale(keys + 4 * c);
    for (int j = 0; j < kPageRows; ++j) {
      k[c * kPageRows + j] = Decode<D>(key_codes[c * kPageRows + j] >> (4 * half) & 0xF, scale);
    }
  }
  const int pairs = head_dim / 2;
  const auto* value_codes =
      reinterpret_cast<const std::uint8_t*>(values + 4 * kQ4GroupRows) + half * kPageRows * pairs;
  auto* v = reinterpret_cast<Element<D>*>(rows + layout.k_bytes());
  for (int r = 0; r < kPageRows; ++r, value_codes += pairs, v += head_dim) {
    const StoredScale scale(values + 4 * (half * kPageRows + r));
    for (int j = 0; j < pairs; ++j) {
      v[j] = Decode<D>(value_codes[j] & 0xF, scale);
      v[j + pairs] = Decode<D>(value_codes[j] >> 4, scale);
    }
  }
}

}  // namespace

void EncodeQ4(const KvPageLayout& layout, const std::byte* first, const std::byte* second,
              int first_row, std::byte* keys, std::byte* values) {
  switch (layout.dtype) {
    case DType::kF32:
      return Encode<DType::kF32>(layout, first, second, first_row, keys, values);
    case DType::kBF16:
      return Encode<DType::kBF16>(layout, first, second, first_row, keys, values);
    case DType::kF16:
      return Encode<DType::kF16>(layout, first, second, first_row, keys, values);
  }
}

void DecodeQ4(const KvPageLayout& layout, const std::byte* keys, const std::byte* values, int half,
              std::byte* rows) {
  switch (layout.dtype) {
    case DType::kF32:
      return DecodePage<DType::kF32>(layout, keys, values, half, rows);
    case DType::kBF16:
      return DecodePage<DType::kBF16>(layout, keys, values, half, rows);
    case DType::kF16:
      return DecodePage<DType::kF16>(layout, keys, values, half, rows);
  }
}

}  // namespace baton
