// CUDA versions of the ops. Plain C++: callers need no CUDA headers.
//
// All pointers are device pointers. Everything is queued on `stream`, nothing waits for the
// device, nothing allocates. Each function returns the cudaError_t of its launches as an int, 0
// for success; CudaErrorText names it. Arithmetic per element is the CPU's; sums run in another
// order, so results agree with the CPU within the tolerances of the room's README.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/kv_page.h"
#include "kernels/launch_plan.h"

struct CUstream_st;  // what cudaStream_t points to

namespace baton::cuda {

using Stream = CUstream_st*;

const char* CudaErrorText(int error);

// As the functions of the same names in elementwise.h.
int RmsNorm(const float* x, std::int64_t ldx, const float* gamma, float eps, std::int64_t n,
            std::int64_t d, float* y, std::int64_t ldy, Stream stream);
int Rope(float* x, std::int64_t ldx, const std::int32_t* positions, const float* inv_freq,
         float attention_scaling, int heads, int head_dim, std::int64_t n, Stream stream);
int SiluMul(const float* gate, std::int64_t ldg, const float* up, std::int64_t ldu, std::int64_t n,
            std::int64_t d, float* y, std::int64_t ldy, Stream stream);
int AddRows(float* x, std::int64_t ldx, const float* y, std::int64_t ldy, std::int64_t n,
            std::int64_t d, Stream stream);

// Rows of a batch into pages: row r of k and v [n, kv_heads * head_dim] goes, for each head h, to
// row rows[r] of page pages[r * kv_heads + h], with positions[r].
struct KvWriteArgs {
  const float* k = nullptr;
  std::int64_t ldk = 0;
  const float* v = nullptr;
  std::int64_t ldv = 0;
  std::byte* const* pages = nullptr;        // [n * kv_heads]
  const std::int32_t* rows = nullptr;       // [n], each in [0, 16)
  const std::int32_t* positions = nullptr;  // [n]
  std::int64_t n = 0;
  int kv_heads = 0;
};
int WriteKvRows(const KvPageLayout& layout, const KvWriteArgs& args, Stream stream);

// One query per sequence against its paged KV (flash decoding). Segments are the CPU's struct
// with device pointers inside.
struct DecodeArgs {
  const float* q = nullptr;                   // [tasks, q_heads * head_dim], rotated
  const std::int32_t* q_positions = nullptr;  // [tasks]
  const KvSegment* segments = nullptr;
  // segments of head h of task t: [offsets[t * kv_heads + h], offsets[t * kv_heads + h + 1])
  const std::int32_t* segment_offsets = nullptr;  // [tasks * kv_heads + 1]
  int tasks = 0;
  float* out = nullptr;        // [tasks, q_heads * head_dim]
  float* lse = nullptr;        // [tasks, q_heads], or null
  float* workspace = nullptr;  // plan.workspace_floats
};
// `plan` comes from PlanDecode for the same shape with max_pages >= the pages of every head.
int DecodeAttention(const AttentionShape& shape, const KvPageLayout& layout, const DecodePlan& plan,
                    const DecodeArgs& args, Stream stream);

}  // namespace baton::cuda
