// Planning of CUDA launches in plain C++, tested without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>

namespace baton {

// A one-dimensional launch over `rows` x `cols` elements.
struct RowLaunch {
  int blocks = 0;   // 0: nothing to do
  int threads = 0;  // per block, a multiple of 32
};

// One block per row (capped at `max_blocks`, rows are then strided), as many threads as the row
// has use for.
RowLaunch PlanRows(std::int64_t rows, std::int64_t cols, int max_blocks);

// Flash decoding: each KV head's keys are cut into splits of `pages_per_split` pages. The cut
// depends only on the longest context and the chip, so a batch bucket keeps one CUDA graph.
struct DecodePlan {
  int splits = 0;
  int pages_per_split = 0;
  int threads = 0;                   // per block
  std::size_t shared_bytes = 0;      // dynamic shared memory per block
  std::size_t workspace_floats = 0;  // partial outputs and their max and sum
};

// tasks: sequences of one query each; max_pages: pages of the longest head. sm_count: of the
// device. All counts >= 1; q_heads a multiple of kv_heads; head_dim a multiple of 8 up to 256.
DecodePlan PlanDecode(int tasks, int q_heads, int kv_heads, int head_dim, int max_pages,
                      int sm_count);

}  // namespace baton
