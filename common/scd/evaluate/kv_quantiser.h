// K/V rounded to a few bits, as baselines for codes: the rule of common/scd/q4_kv.h (keys with a
// scale per channel and group of 32 rows, values with a scale per row, asymmetric) for any number
// of bits, in floats. Scales are fp16.
//
// Source: KIVI, arXiv 2402.02750, section 3.
#pragma once

#include <cstdint>

namespace baton {

struct KvShape {
  int kv_heads = 0;
  int head_dim = 0;

  std::int64_t width() const { return std::int64_t{2} * kv_heads * head_dim; }
};

// kv [rows, width()]: [K | V] of rows 0, 1, ... of a prefix; becomes what a receiver would have.
// The first `first_row` rows have no say in the keys' scales. 1 to 8 bits.
void QuantiseKv(int bits, const KvShape& shape, std::int64_t first_row, std::int64_t rows,
                float* kv);
// Bytes of the codes and scales of one layer's `rows` rows.
double QuantisedKvBytes(int bits, const KvShape& shape, std::int64_t rows);

// Nearest fp16, in place.
void RoundToHalf(float* values, std::int64_t count);

// What common/scd/q4_kv.h makes of the rows, the newest kQ4ResidualRows (and what is left of their
// group) as fp16, in place; and its bytes.
void PassThroughQ4(const KvShape& shape, std::int64_t first_row, std::int64_t rows, float* kv);
double Q4KvBytes(const KvShape& shape, std::int64_t rows);

}  // namespace baton
