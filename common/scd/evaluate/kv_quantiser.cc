#include "common/scd/evaluate/kv_quantiser.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

#include "common/scd/q4_kv.h"
#include "kernels/convert_math.h"
#include "kernels/kv_page.h"

namespace baton {
namespace {

constexpr float kMostHalf = 65504.0f;

float Half(float x) { return HalfToFloat(FloatToHalf(std::clamp(x, -kMostHalf, kMostHalf))); }

// `count` values, `stride` apart, rounded to codes between the least and the largest of those from
// `first` on.
void RoundGroup(int bits, std::int64_t first, std::int64_t count, std::int64_t stride,
                float* values) {
  if (first >= count) return;
  float min = values[first * stride];
  float max = min;
  for (std::int64_t i = first; i < count; ++i) {
    min = std::min(min, values[i * stride]);
    max = std::max(max, values[i * stride]);
  }
  const auto most = static_cast<float>((1 << bits) - 1);
  const float d = (max - min) / most;
  const float inverse = d != 0 ? 1 / d : 0;
  const float stored_d = Half(d), stored_min = Half(min);
  for (std::int64_t i = 0; i < count; ++i) {
    float& x = values[i * stride];
    const float code = std::floor(std::clamp((x - min) * inverse + 0.5f, 0.0f, most));
    x = code * stored_d + stored_min;
  }
}

std::int64_t Q4Rows(std::int64_t rows) {
  return std::max<std::int64_t>(0, rows - kQ4ResidualRows) / kQ4GroupRows * kQ4GroupRows;
}

// Rows of one head into the pages of a group, fp32, or back out of a page's payload.
void ToPages(const KvPageLayout& layout, const float* k, const float* v, std::int64_t ld,
             std::vector<std::byte>* pages) {
  for (int r = 0; r < kQ4GroupRows; ++r) {
    std::byte* page = pages[r / kPageRows].data();
    auto* keys = reinterpret_cast<float*>(page + layout.k_offset());
    auto* values = reinterpret_cast<float*>(page + layout.v_offset());
    const int row = r % kPageRows;
    for (int c = 0; c < layout.head_dim; ++c) {
      keys[c * kPageRows + row] = k[r * ld + c];
      values[row * layout.head_dim + c] = v[r * ld + c];
    }
  }
}

void FromRows(const KvPageLayout& layout, const std::byte* payload, std::int64_t ld, float* k,
              float* v) {
  const auto* keys = reinterpret_cast<const float*>(payload);
  const auto* values = reinterpret_cast<const float*>(payload + layout.k_bytes());
  for (int row = 0; row < kPageRows; ++row) {
    for (int c = 0; c < layout.head_dim; ++c) {
      k[row * ld + c] = keys[c * kPageRows + row];
      v[row * ld + c] = values[row * layout.head_dim + c];
    }
  }
}

}  // namespace

void QuantiseKv(int bits, const KvShape& shape, std::int64_t first_row, std::int64_t rows,
                float* kv) {
  const std::int64_t ld = shape.width();
  const std::int64_t kv_dim = ld / 2;
  for (std::int64_t begin = 0; begin < rows; begin += kQ4GroupRows) {
    const std::int64_t count = std::min<std::int64_t>(kQ4GroupRows, rows - begin);
    const std::int64_t first = std::clamp<std::int64_t>(first_row - begin, 0, count);
    for (std::int64_t c = 0; c < kv_dim; ++c) {
      RoundGroup(bits, first, count, ld, kv + begin * ld + c);
    }
    for (std::int64_t r = begin; r < begin + count; ++r) {
      for (int head = 0; head < shape.kv_heads; ++head) {
        RoundGroup(bits, 0, shape.head_dim, 1, kv + r * ld + kv_dim + head * shape.head_dim);
      }
    }
  }
}

double QuantisedKvBytes(int bits, const KvShape& shape, std::int64_t rows) {
  const std::int64_t groups = (rows + kQ4GroupRows - 1) / kQ4GroupRows;
  const double values = static_cast<double>(rows * shape.width()) * bits / 8;
  const auto key_scales = static_cast<double>(groups * shape.kv_heads * shape.head_dim * 4);
  const auto value_scales = static_cast<double>(rows * shape.kv_heads * 4);
  return values + key_scales + value_scales;
}

void RoundToHalf(float* values, std::int64_t count) {
  for (std::int64_t i = 0; i < count; ++i) values[i] = Half(values[i]);
}

void PassThroughQ4(const KvShape& shape, std::int64_t first_row, std::int64_t rows, float* kv) {
  const KvPageLayout layout{shape.head_dim, DType::kF32};
  const std::int64_t ld = shape.width();
  const std::int64_t coded = Q4Rows(rows);
  std::vector<std::byte> pages[kQ4GroupPages];
  for (auto& page : pages) page.resize(layout.page_bytes());
  std::vector<std::byte> keys(Q4KeyBytes(shape.head_dim)), values(Q4ValueBytes(shape.head_dim));
  std::vector<std::byte> payload(layout.payload_bytes());
  for (std::int64_t begin = 0; begin < coded; begin += kQ4GroupRows) {
    const auto first = static_cast<int>(std::clamp<std::int64_t>(first_row - begin, 0, 31));
    for (int head = 0; head < shape.kv_heads; ++head) {
      float* k = kv + begin * ld + head * shape.head_dim;
      float* v = k + ld / 2;
      ToPages(layout, k, v, ld, pages);
      EncodeQ4(layout, pages[0].data(), pages[1].data(), first, keys.data(), values.data());
      for (int half = 0; half < kQ4GroupPages; ++half) {
        DecodeQ4(layout, keys.data(), values.data(), half, payload.data());
        FromRows(layout, payload.data(), ld, k + half * kPageRows * ld, v + half * kPageRows * ld);
      }
    }
  }
  RoundToHalf(kv + coded * ld, (rows - coded) * ld);
}

double Q4KvBytes(const KvShape& shape, std::int64_t rows) {
  const std::int64_t coded = Q4Rows(rows);
  const std::int64_t groups = coded / kQ4GroupRows * shape.kv_heads;
  const auto group = static_cast<double>(Q4KeyBytes(shape.head_dim) + Q4ValueBytes(shape.head_dim));
  return static_cast<double>(groups) * group +
         static_cast<double>((rows - coded) * shape.width() * 2);
}

}  // namespace baton
