// Attention of a block of queries over a list of KV segments, with log-sum-exp.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/executor.h"
#include "kernels/kv_page.h"

namespace baton {

// Rows that one KV head attends to. A view may answer with several segments per head, and each
// layer and head with other lengths.
struct KvSegment {
  const std::byte* const* pages = nullptr;  // [ceil(num_rows / 16)], in row order
  std::int32_t num_rows = 0;                // valid rows; the last page may be partly filled
  const float* bias = nullptr;              // [num_rows] added to the scores, or null
  // Positions never decrease along the rows (lets a causal query stop early).
  bool sorted = true;
};

struct AttentionShape {
  int q_heads = 0;
  int kv_heads = 0;  // divides q_heads
  int head_dim = 0;
  float scale = 0;  // usually 1/sqrt(head_dim)
  int window = 0;   // sliding window in tokens; 0: none
};

// One sequence's part of a batch. Row r of q sees a key iff key_pos <= q_pos[r] and, with a
// window, q_pos[r] - key_pos < window.
struct AttentionTask {
  const float* q = nullptr;                   // [num_q, q_heads * head_dim], rotated
  std::int64_t ldq = 0;                       // floats between query rows
  const std::int32_t* q_positions = nullptr;  // [num_q]
  std::int32_t num_q = 0;
  // segments of head h: segments[segment_offsets[h] .. segment_offsets[h + 1])
  const KvSegment* segments = nullptr;
  const std::int32_t* segment_offsets = nullptr;  // [kv_heads + 1]
  float* out = nullptr;                           // [num_q, q_heads * head_dim]
  std::int64_t ldo = 0;
  float* lse = nullptr;  // [num_q, q_heads], or null
};

// Softmax over the union of all visible rows. A query that sees nothing gets zeros and
// lse = -inf. fp32 accumulation for every page dtype. Batch invariant: the result of a query
// does not depend on which other queries or tasks are in the call.
void Attention(const AttentionShape& shape, const KvPageLayout& layout, const AttentionTask* tasks,
               std::int64_t num_tasks, Executor& executor);

// Column sums of the attention matrix without building it:
//   mass[row] = sum over queries r and the query heads of the group of exp(score - lse[r, head]),
// one KV head after the other in the order of its segments' rows. `task.lse` must hold the
// log-sum-exp that Attention returned; `task.out` is ignored.
// mass: sum over heads of all segments' num_rows floats, overwritten.
void KeyMass(const AttentionShape& shape, const KvPageLayout& layout, const AttentionTask& task,
             float* mass, Executor& executor);

}  // namespace baton
