// One KV head's online softmax over 64-key blocks, compiled once per instruction set. Internal.
//
// Blocks are aligned to the row index within a segment, and each score, each probability sum and
// each output is a sum in one fixed order, so that a query's result does not depend on its
// neighbours. A masked key has probability exactly 0 and leaves every sum bit-identical.
#pragma once

#include <cmath>

#include "kernels/isa_table.h"
#include "kernels/simd.h"

namespace baton {
namespace {

inline constexpr int kPages = kKeyBlock / kPageRows;

// A block's pages as the inner loops read them: absent pages repeat the first one.
struct KeyBlock {
  const std::byte* k[kPages];
  const std::byte* v[kPages];
  const std::int32_t* positions[kPages];
  int rows[kPages];  // valid rows, 0 for an absent page
  std::int32_t min_position;
  std::int32_t max_position;
  const float* bias;  // of the block's first row, or null
  DType dtype;
};

BATON_V std::int32_t MinI(std::int32_t a, std::int32_t b) { return a < b ? a : b; }
BATON_V std::int32_t MaxI(std::int32_t a, std::int32_t b) { return a > b ? a : b; }

void OpenBlock(const KvPageLayout& layout, const KvSegment& seg, std::int32_t row, KeyBlock* b) {
  b->min_position = INT32_MAX;
  b->max_position = INT32_MIN;
  b->dtype = layout.dtype;
  b->bias = seg.bias == nullptr ? nullptr : seg.bias + row;
  for (int p = 0; p < kPages; ++p) {
    const std::int32_t left = seg.num_rows - row - p * kPageRows;
    b->rows[p] = left <= 0 ? 0 : MinI(left, kPageRows);
    const std::byte* page = seg.pages[row / kPageRows + (left <= 0 ? 0 : p)];
    b->k[p] = page + layout.k_offset();
    b->v[p] = page + layout.v_offset();
    b->positions[p] = PagePositions(page);
    if (seg.sorted && b->rows[p] > 0) {
      b->min_position = MinI(b->min_position, b->positions[p][0]);
      b->max_position = MaxI(b->max_position, b->positions[p][b->rows[p] - 1]);
    } else {
      for (int i = 0; i < b->rows[p]; ++i) {
        b->min_position = MinI(b->min_position, b->positions[p][i]);
        b->max_position = MaxI(b->max_position, b->positions[p][i]);
      }
    }
  }
}

template <DType D>
BATON_V F16 LoadRow16(const std::byte* base, std::int64_t element) {
  if constexpr (D == DType::kF32) {
    return Load(reinterpret_cast<const float*>(base) + element);
  } else if constexpr (D == DType::kBF16) {
    return LoadBf16(reinterpret_cast<const std::uint16_t*>(base) + element);
  } else {
    return LoadHalf(reinterpret_cast<const std::uint16_t*>(base) + element);
  }
}
template <DType D>
BATON_V F16 LoadRow8(const std::byte* base, std::int64_t element) {
  if constexpr (D == DType::kF32) {
    return LoadN(reinterpret_cast<const float*>(base) + element, 8);
  } else if constexpr (D == DType::kBF16) {
    return LoadBf16x8(reinterpret_cast<const std::uint16_t*>(base) + element);
  } else {
    return LoadHalfx8(reinterpret_cast<const std::uint16_t*>(base) + element);
  }
}

template <DType D>
void WidenBlock(const KvPageLayout& layout, KeyBlock* b, float* k_out, float* v_out) {
  const std::int64_t n = static_cast<std::int64_t>(kPageRows) * layout.head_dim;
  for (int p = 0; p < kPages; ++p) {
    if (b->rows[p] == 0) {
      b->k[p] = b->k[0];
      b->v[p] = b->v[0];
      continue;
    }
    for (std::int64_t i = 0; i < n; i += 16) {
      Store(k_out + p * n + i, LoadRow16<D>(b->k[p], i));
      Store(v_out + p * n + i, LoadRow16<D>(b->v[p], i));
    }
    b->k[p] = reinterpret_cast<const std::byte*>(k_out + p * n);
    b->v[p] = reinterpret_cast<const std::byte*>(v_out + p * n);
  }
}

// s[r][64] = q_r . k for R rows; qt [head_dim][R].
template <DType D, int R>
void Scores(const float* qt, const KeyBlock& b, int head_dim, float* s) {
  for (int p0 = 0; p0 < kPages; p0 += kVectors) {
    if (b.rows[p0] == 0) break;
    F16 a[R][kVectors];
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < kVectors; ++p) a[r][p] = Splat(0.0f);
    }
    const std::byte* kp[kVectors];
#pragma GCC unroll 4
    for (int p = 0; p < kVectors; ++p) kp[p] = b.k[p0 + p];
    for (int d = 0; d < head_dim; ++d) {
      F16 k[kVectors];
#pragma GCC unroll 4
      for (int p = 0; p < kVectors; ++p) k[p] = LoadRow16<D>(kp[p], d * 16);
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const F16 q = Splat(qt[d * R + r]);
#pragma GCC unroll 4
        for (int p = 0; p < kVectors; ++p) a[r][p] = FmaT(q, k[p], a[r][p]);
      }
    }
#pragma GCC unroll 6
    for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
      for (int p = 0; p < kVectors; ++p) Store(s + r * kKeyBlock + (p0 + p) * 16, a[r][p]);
    }
  }
}

// o[r][col .. col + 16 N) = o * alpha[r] + p[r] . v, keys in order. kTail: 8 columns.
template <DType D, int R, int N, bool kTail>
void Outputs(const float* s, const KeyBlock& b, unsigned live, int head_dim, int col,
             const float* alpha, float* o, int ldo) {
  F16 a[R][N];
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
    const F16 scale = Splat(alpha[r]);
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) a[r][n] = Load(o + r * ldo + col + 16 * n) * scale;
  }
  for (int p = 0; p < kPages; ++p) {
    if ((live >> p & 1) == 0) continue;
    const int rows = b.rows[p];
    const float* sp = s + p * kPageRows;
    for (int j = 0; j < rows; ++j) {
      F16 v[N];
      const std::int64_t at = static_cast<std::int64_t>(j) * head_dim + col;
#pragma GCC unroll 4
      for (int n = 0; n < N; ++n) {
        v[n] = kTail ? LoadRow8<D>(b.v[p], at) : LoadRow16<D>(b.v[p], at + 16 * n);
      }
#pragma GCC unroll 6
      for (int r = 0; r < R; ++r) {
        const F16 w = Splat(sp[r * kKeyBlock + j]);
#pragma GCC unroll 4
        for (int n = 0; n < N; ++n) a[r][n] = FmaT(w, v[n], a[r][n]);
      }
    }
  }
#pragma GCC unroll 6
  for (int r = 0; r < R; ++r) {
#pragma GCC unroll 4
    for (int n = 0; n < N; ++n) Store(o + r * ldo + col + 16 * n, a[r][n]);
  }
}

template <DType D, int R>
void AllOutputs(const float* s, const KeyBlock& b, unsigned live, int head_dim, const float* alpha,
                float* o, int ldo) {
  int col = 0;
  for (; col + 16 * kVectors <= head_dim; col += 16 * kVectors) {
    Outputs<D, R, kVectors, false>(s, b, live, head_dim, col, alpha, o, ldo);
  }
  for (; col + 16 <= head_dim; col += 16) {
    Outputs<D, R, 1, false>(s, b, live, head_dim, col, alpha, o, ldo);
  }
  if (col < head_dim) Outputs<D, R, 1, true>(s, b, live, head_dim, col, alpha, o, ldo);
}

using ScoresFn = void (*)(const float*, const KeyBlock&, int, float*);
using OutputsFn = void (*)(const float*, const KeyBlock&, unsigned, int, const float*, float*, int);

template <DType D>
ScoresFn ScoresOf(int rows) {
  constexpr ScoresFn kFns[] = {Scores<D, 1>, Scores<D, 2>,
                               Scores < D,   kScoreRows >= 3 ? 3 : 1 >,
                               Scores < D,   kScoreRows >= 4 ? 4 : 1 >,
                               Scores < D,   kScoreRows >= 5 ? 5 : 1 >,
                               Scores < D,   kScoreRows >= 6 ? 6 : 1 > };
  return kFns[rows - 1];
}
template <DType D>
OutputsFn OutputsOf(int rows) {
  constexpr OutputsFn kFns[] = {
      AllOutputs<D, 1>, AllOutputs<D, 2>,          AllOutputs < D, kScoreRows >= 3 ? 3 : 1 >,
      AllOutputs < D,   kScoreRows >= 4 ? 4 : 1 >, AllOutputs < D, kScoreRows >= 5 ? 5 : 1 >,
      AllOutputs < D,   kScoreRows >= 6 ? 6 : 1 > };
  return kFns[rows - 1];
}
ScoresFn ScoresFor(DType t, int rows) {
  return t == DType::kF32    ? ScoresOf<DType::kF32>(rows)
         : t == DType::kBF16 ? ScoresOf<DType::kBF16>(rows)
                             : ScoresOf<DType::kF16>(rows);
}
OutputsFn OutputsFor(DType t, int rows) {
  return t == DType::kF32    ? OutputsOf<DType::kF32>(rows)
         : t == DType::kBF16 ? OutputsOf<DType::kBF16>(rows)
                             : OutputsOf<DType::kF16>(rows);
}

void Widen(const KvPageLayout& layout, KeyBlock* b, float* k, float* v) {
  if (b->dtype == DType::kBF16) WidenBlock<DType::kBF16>(layout, b, k, v);
  if (b->dtype == DType::kF16) WidenBlock<DType::kF16>(layout, b, k, v);
  b->dtype = DType::kF32;
}

// Scales, biases and masks one row's 64 scores in place. Returns which pages the row sees.
BATON_V unsigned MaskRow(const AttentionShape& shape, const KeyBlock& b, std::int32_t q_position,
                         float* s) {
  const F16 scale = Splat(shape.scale);
  const F16 hidden = Splat(-__builtin_inff());
  const std::int32_t oldest = shape.window > 0 ? q_position - shape.window : INT32_MIN;
  unsigned live = 0;
  for (int p = 0; p < kPages; ++p) {
    float* sp = s + p * kPageRows;
    if (b.rows[p] == 0) {
      Store(sp, hidden);
      continue;
    }
    F16 x = Load(sp) * scale;
    if (b.bias != nullptr) x = x + LoadN(b.bias + p * kPageRows, b.rows[p]);
    const Mask16 valid = static_cast<Mask16>((1u << b.rows[p]) - 1);
    const Mask16 seen = InRange(b.positions[p], oldest, q_position) & valid;
    Store(sp, Select(seen, x, hidden));
    live |= (seen != 0 ? 1u : 0u) << p;
  }
  return live;
}

// Whether any query with a position in [q_min, q_max] can see a key of the block.
BATON_V bool BlockVisible(const AttentionShape& shape, const KeyBlock& b, std::int32_t q_min,
                          std::int32_t q_max) {
  if (b.min_position > q_max) return false;
  return shape.window <= 0 || b.max_position > q_min - shape.window;
}

// The first row worth looking at, a multiple of kKeyBlock: of sorted rows, everything in the blocks
// before it has left the window of every query from `q_min` on. Skipping what would be masked
// changes no bit.
std::int32_t FirstRow(const AttentionShape& shape, const KvSegment& seg, std::int32_t q_min) {
  if (shape.window <= 0 || !seg.sorted) return 0;
  std::int32_t low = 0, high = (seg.num_rows - 1) / kKeyBlock;
  while (low < high) {
    const std::int32_t middle = low + (high - low) / 2;
    const std::int32_t last = (middle + 1) * kKeyBlock - 1;  // in a full block: high is beyond
    if (PagePositions(seg.pages[last / kPageRows])[last % kPageRows] <= q_min - shape.window) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  return low * kKeyBlock;
}

// State of one tile of rows between blocks.
struct TileState {
  int rows = 0;
  std::int32_t q_min = 0;
  std::int32_t q_max = 0;
  const float* qt = nullptr;                // [head_dim][rows]
  const std::int32_t* positions = nullptr;  // [rows]
  float* max = nullptr;                     // [rows]
  float* sum = nullptr;                     // [rows][16] lanes of the probability sum
  float* o = nullptr;                       // [rows][ldo]
};

void TileBlock(const AttentionShape& shape, const KeyBlock& b, int head_dim, int ldo,
               const TileState& t, float* s) {
  ScoresFor(b.dtype, t.rows)(t.qt, b, head_dim, s);
  float alpha[kScoreRows];
  unsigned live = 0;
  for (int r = 0; r < t.rows; ++r) {
    float* row = s + r * kKeyBlock;
    const unsigned seen = MaskRow(shape, b, t.positions[r], row);
    F16 x[kPages];
    for (int p = 0; p < kPages; ++p) x[p] = Load(row + p * 16);
    const float block_max = ReduceMax(MaxT(MaxT(x[0], x[1]), MaxT(x[2], x[3])));
    if (seen == 0 || block_max == -__builtin_inff()) {
      // Sees nothing here: the state stays as it is.
      for (int p = 0; p < kPages; ++p) Store(row + p * 16, Splat(0.0f));
      alpha[r] = 1.0f;
      continue;
    }
    live |= seen;
    const float m = block_max > t.max[r] ? block_max : t.max[r];
    alpha[r] = ExpT(t.max[r] - m);
    t.max[r] = m;
    F16 sum = Load(t.sum + r * 16) * Splat(alpha[r]);
    for (int p = 0; p < kPages; ++p) {
      const F16 e = ExpT(x[p] - Splat(m));
      sum = sum + e;
      Store(row + p * 16, e);
    }
    Store(t.sum + r * 16, sum);
  }
  if (live != 0) OutputsFor(b.dtype, t.rows)(s, b, live, head_dim, alpha, t.o, ldo);
}

// Rows of a tile: as even as possible, at most kScoreRows.
BATON_V int TileRows(int rows, int done) {
  const int left = rows - done;
  const int tiles = (left + kScoreRows - 1) / kScoreRows;
  return (left + tiles - 1) / tiles;
}

BATON_V const float* QueryRow(const AttentionShape& shape, const AttentionTask& task, int kv_head,
                              int group, std::int32_t q_begin, int row) {
  return task.q + (q_begin + row / group) * task.ldq +
         static_cast<std::int64_t>(kv_head * group + row % group) * shape.head_dim;
}

// Rows are query-major: row = (query - q_begin) * group + head of the group.
void TransposeQueries(const AttentionShape& shape, const AttentionTask& task, int kv_head,
                      std::int32_t q_begin, std::int32_t q_end, float* qt) {
  const int group = shape.q_heads / shape.kv_heads;
  const int rows = (q_end - q_begin) * group;
  for (int done = 0; done < rows;) {
    const int n = TileRows(rows, done);
    for (int r = 0; r < n; ++r) {
      const float* q = QueryRow(shape, task, kv_head, group, q_begin, done + r);
      for (int d = 0; d < shape.head_dim; ++d) qt[d * n + r] = q[d];
    }
    qt += static_cast<std::int64_t>(n) * shape.head_dim;
    done += n;
  }
}

BATON_V int PaddedDim(int head_dim) { return (head_dim + 15) / 16 * 16; }

void WriteOutputs(const AttentionUnit& u, int rows, const float* max, const float* sum,
                  const float* o, int ldo) {
  const AttentionShape& shape = *u.shape;
  const AttentionTask& task = *u.task;
  const int group = shape.q_heads / shape.kv_heads;
  for (int row = 0; row < rows; ++row) {
    const std::int64_t query = u.q_begin + row / group;
    const int head = u.kv_head * group + row % group;
    const float total = ReduceAdd(Load(sum + row * 16));
    const bool empty = !(total > 0.0f) && max[row] == -__builtin_inff();
    const F16 inv = Splat(empty ? 0.0f : 1.0f / total);
    float* out = task.out + query * task.ldo + static_cast<std::int64_t>(head) * shape.head_dim;
    for (int d = 0; d < shape.head_dim; d += 16) {
      // + 0 turns an underflowed -0 into +0, whether or not masked rows followed it.
      const F16 x = Load(o + static_cast<std::int64_t>(row) * ldo + d) * inv + Splat(0.0f);
      StoreN(out + d, x, shape.head_dim - d < 16 ? shape.head_dim - d : 16);
    }
    if (task.lse != nullptr) {
      task.lse[query * shape.q_heads + head] = empty ? -__builtin_inff() : max[row] + ::logf(total);
    }
  }
}

void AttentionUnitRun(const AttentionUnit& u) {
  const AttentionShape& shape = *u.shape;
  const AttentionTask& task = *u.task;
  const int group = shape.q_heads / shape.kv_heads;
  const int rows = (u.q_end - u.q_begin) * group;
  const int head_dim = shape.head_dim;
  const int ldo = PaddedDim(head_dim);
  float* k_wide = u.scratch;
  float* v_wide = k_wide + kKeyBlock * head_dim;
  float* s = v_wide + kKeyBlock * head_dim;
  float* o = s + kScoreRows * kKeyBlock;
  float* sum = o + static_cast<std::int64_t>(rows) * ldo;
  float* max = sum + static_cast<std::int64_t>(rows) * 16;
  float* qt = max + (rows + 15) / 16 * 16;
  std::int32_t* positions =
      reinterpret_cast<std::int32_t*>(qt + static_cast<std::int64_t>(rows) * head_dim);
  TransposeQueries(shape, task, u.kv_head, u.q_begin, u.q_end, qt);
  std::int32_t q_min = INT32_MAX, q_max = INT32_MIN;
  for (int r = 0; r < rows; ++r) {
    positions[r] = task.q_positions[u.q_begin + r / group];
    q_min = MinI(q_min, positions[r]);
    q_max = MaxI(q_max, positions[r]);
    max[r] = -__builtin_inff();
  }
  memset(o, 0, sizeof(float) * static_cast<std::size_t>(rows) * (ldo + 16));

  for (int i = task.segment_offsets[u.kv_head]; i < task.segment_offsets[u.kv_head + 1]; ++i) {
    const KvSegment& seg = task.segments[i];
    for (std::int32_t row = FirstRow(shape, seg, q_min); row < seg.num_rows; row += kKeyBlock) {
      KeyBlock b;
      OpenBlock(*u.layout, seg, row, &b);
      if (!BlockVisible(shape, b, q_min, q_max)) {
        if (seg.sorted && b.min_position > q_max) break;
        continue;
      }
      if (b.dtype != DType::kF32 && rows > kScoreRows) Widen(*u.layout, &b, k_wide, v_wide);
      TileState t;
      for (int done = 0; done < rows; done += t.rows) {
        t.rows = TileRows(rows, done);
        t.q_min = INT32_MAX;
        t.q_max = INT32_MIN;
        for (int r = done; r < done + t.rows; ++r) {
          t.q_min = MinI(t.q_min, positions[r]);
          t.q_max = MaxI(t.q_max, positions[r]);
        }
        if (!BlockVisible(shape, b, t.q_min, t.q_max)) continue;
        t.qt = qt + static_cast<std::int64_t>(done) * head_dim;
        t.positions = positions + done;
        t.max = max + done;
        t.sum = sum + done * 16;
        t.o = o + static_cast<std::int64_t>(done) * ldo;
        TileBlock(shape, b, head_dim, ldo, t, s);
      }
    }
  }
  WriteOutputs(u, rows, max, sum, o, ldo);
}

void KeyMassUnitRun(const KeyMassUnit& u) {
  const AttentionShape& shape = *u.shape;
  const AttentionTask& task = *u.task;
  const int group = shape.q_heads / shape.kv_heads;
  const int rows = task.num_q * group;
  const int head_dim = shape.head_dim;
  float* k_wide = u.scratch;
  float* v_wide = k_wide + kKeyBlock * head_dim;
  float* s = v_wide + kKeyBlock * head_dim;
  KeyBlock b;
  OpenBlock(*u.layout, *u.segment, u.row_begin, &b);
  if (b.dtype != DType::kF32 && rows > kScoreRows) Widen(*u.layout, &b, k_wide, v_wide);
  F16 mass[kPages] = {Splat(0.0f), Splat(0.0f), Splat(0.0f), Splat(0.0f)};
  const float* qt = u.qt;
  for (int done = 0; done < rows;) {
    const int n = TileRows(rows, done);
    ScoresFor(b.dtype, n)(qt, b, head_dim, s);
    for (int r = 0; r < n; ++r) {
      const int query = (done + r) / group;
      const int head = u.kv_head * group + (done + r) % group;
      const float lse = task.lse[static_cast<std::int64_t>(query) * shape.q_heads + head];
      float* row = s + r * kKeyBlock;
      // A query that saw nothing (lse = -inf) gives no mass.
      if (MaskRow(shape, b, task.q_positions[query], row) == 0 || lse == -__builtin_inff())
        continue;
      for (int p = 0; p < kPages; ++p) {
        mass[p] = mass[p] + ExpT(Load(row + p * 16) - Splat(lse));
      }
    }
    qt += static_cast<std::int64_t>(n) * head_dim;
    done += n;
  }
  for (int p = 0; p < kPages; ++p) {
    if (b.rows[p] > 0) StoreN(u.mass + p * 16, mass[p], b.rows[p]);
  }
}

}  // namespace
}  // namespace baton
