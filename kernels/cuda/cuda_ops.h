// CUDA versions of the ops. Plain C++: callers need no CUDA headers.
//
// All pointers are device pointers unless said otherwise. Everything is queued on `stream`, nothing
// waits for the device, nothing allocates: workspaces come from the caller, sized by the plan
// (launch_plan.h). Arithmetic per element is the CPU's; ops without a sum give the CPU's bits, sums
// run in another order and agree within the tolerances of the room's README.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "kernels/attention.h"
#include "kernels/codes_math.h"
#include "kernels/kv_page.h"
#include "kernels/launch_plan.h"

struct CUstream_st;  // what cudaStream_t points to

namespace baton::cuda {

using Stream = CUstream_st*;

// What came of queueing an op: 0, or the cudaError_t with the launch it came from.
struct [[nodiscard]] LaunchStatus {
  int error = 0;
  const char* kernel = "";
  unsigned grid[3] = {0, 0, 0};
  unsigned threads = 0;
  std::size_t shared_bytes = 0;

  bool ok() const { return error == 0; }
  // "attention_split<<<(4, 8, 2), 128, 20480 bytes>>>: invalid argument", or "ok".
  std::string ToString() const;
};

// Devices this process can use; 0 without a driver.
int DeviceCount();
// Multiprocessors of the current device; 0 if there is none.
int SmCount();

// As the functions of the same names in elementwise.h.
LaunchStatus RmsNorm(const float* x, std::int64_t ldx, const float* gamma, float eps,
                     std::int64_t n, std::int64_t d, float* y, std::int64_t ldy, Stream stream);
LaunchStatus Rope(float* x, std::int64_t ldx, const std::int32_t* positions, const float* inv_freq,
                  float attention_scaling, int heads, int head_dim, std::int64_t n, Stream stream);
LaunchStatus SiluMul(const float* gate, std::int64_t ldg, const float* up, std::int64_t ldu,
                     std::int64_t n, std::int64_t d, float* y, std::int64_t ldy, Stream stream);
LaunchStatus AddRows(float* x, std::int64_t ldx, const float* y, std::int64_t ldy, std::int64_t n,
                     std::int64_t d, Stream stream);

// y[n, d] (row stride ldy) = rows ids[n] of table [vocab, d] of `dtype`, as fp32. An id outside
// [0, vocab) gives a row of NaN: it shows, and nothing is read out of bounds.
LaunchStatus EmbeddingRows(const void* table, DType dtype, std::int64_t vocab, std::int64_t d,
                           const std::int32_t* ids, std::int64_t n, float* y, std::int64_t ldy,
                           Stream stream);
// The same from a table of codes.
LaunchStatus EmbeddingCodes(const std::uint8_t* codes, const std::uint16_t* scales, CodeType type,
                            std::int64_t vocab, std::int64_t d, const std::int32_t* ids,
                            std::int64_t n, float* y, std::int64_t ldy, Stream stream);

// Rows of a batch and pages: row r of k and v [n, kv_heads * head_dim] belongs, for each head h, to
// row rows[r] of page pages[r * kv_heads + h].
struct KvRowsArgs {
  float* k = nullptr;
  std::int64_t ldk = 0;
  float* v = nullptr;
  std::int64_t ldv = 0;
  std::byte* const* pages = nullptr;   // [n * kv_heads]
  const std::int32_t* rows = nullptr;  // [n], each in [0, 16)
  std::int64_t n = 0;
  int kv_heads = 0;
};
// How keys are rotated on their way into a page; inv_freq null: they are already.
struct KeyRotation {
  const float* inv_freq = nullptr;  // [head_dim / 2]
  float attention_scaling = 1;
};
// k and v into the pages, with positions [n]. Reads k and v only.
LaunchStatus WriteKvRows(const KvPageLayout& layout, const KvRowsArgs& args,
                         const std::int32_t* positions, const KeyRotation& rotation, Stream stream);
// The pages' rows back into k and v as fp32.
LaunchStatus ReadKvRows(const KvPageLayout& layout, const KvRowsArgs& args, Stream stream);

// As CopyKvRows in kv_write.h for `n` pages at once: rows [row_begin[i], row_end[i]) of
// payloads[i] into pages[i].
LaunchStatus CopyKvRows(const KvPageLayout& layout, const std::byte* const* payloads,
                        std::byte* const* pages, const std::int32_t* row_begin,
                        const std::int32_t* row_end, std::int64_t n, Stream stream);

// A batch of tasks (attention.h), rows of all tasks one after the other. Segments are the CPU's
// struct with device pointers inside.
struct AttentionArgs {
  const float* q = nullptr;                   // [rows, q_heads * head_dim], rotated
  std::int64_t ldq = 0;                       // floats between rows
  const std::int32_t* q_positions = nullptr;  // [rows]
  const KvSegment* segments = nullptr;
  // segments of head h of task t: [offsets[t * kv_heads + h], offsets[t * kv_heads + h + 1])
  const std::int32_t* segment_offsets = nullptr;  // [tasks * kv_heads + 1]
  const AttentionTile* tiles = nullptr;           // the plan's tiles, copied to the device
  float* out = nullptr;                           // [rows, q_heads * head_dim]
  std::int64_t ldo = 0;
  float* lse = nullptr;        // [rows, q_heads], or null
  float* workspace = nullptr;  // plan.workspace_floats
};
// `plan` comes from PlanAttention for the same shape with max_pages >= the pages of every head.
LaunchStatus Attention(const AttentionShape& shape, const KvPageLayout& layout,
                       const AttentionPlan& plan, const AttentionArgs& args, Stream stream);

// As KeyMass in attention.h, of one task whose pointers are all device pointers. mass: sum over
// heads of all segments' num_rows floats, in the order of the CPU's. `plan` comes from PlanKeyMass.
LaunchStatus KeyMass(const AttentionShape& shape, const KvPageLayout& layout,
                     const KeyMassPlan& plan, const AttentionTask& task, float* mass,
                     Stream stream);

// tokens[n] = ArgMax of each row of x [n, d] (sampling.h). d < 2^31. workspace:
// plan.workspace_floats of PlanReduce(n, d, ...).
LaunchStatus ArgMax(const float* x, std::int64_t ldx, std::int64_t n, std::int64_t d,
                    const ReducePlan& plan, float* workspace, std::int32_t* tokens, Stream stream);

// Surprisal over a vocabulary that comes in chunks of columns, so that a full logits matrix never
// exists. state [n, 3]: max, sum of exp(x - max), the target's logit.
//   for each chunk: SurprisalChunk(logits of columns [first_col, first_col + cols), ...)
//   SurprisalFinish(state, ...)
// The chunk with first_col 0 must come first: it starts the state. targets [n]: columns of the
// whole vocabulary. workspace: plan.workspace_floats of PlanReduce(n, cols, ...).
LaunchStatus SurprisalChunk(const float* logits, std::int64_t ld, std::int64_t n, std::int64_t cols,
                            std::int64_t first_col, const std::int32_t* targets,
                            const ReducePlan& plan, float* workspace, float* state, Stream stream);
// surprisal[n] = lse - logit of the target, in nats; lse [n], or null. A target outside of all
// chunks gives NaN.
LaunchStatus SurprisalFinish(const float* state, std::int64_t n, float* surprisal, float* lse,
                             Stream stream);

// As the functions of the same names in codes.h; of a block with zeros of both signs, the signs of
// its scale and minimum may differ. Codes must be aligned to 16 bytes, scales to 4: anything else
// is refused as an invalid value.
LaunchStatus QuantizeRows(const float* x, std::int64_t ldx, std::int64_t n, std::int64_t d,
                          CodeType type, std::uint8_t* codes, std::uint16_t* scales, Stream stream);
LaunchStatus DequantizeRows(const std::uint8_t* codes, const std::uint16_t* scales, std::int64_t n,
                            std::int64_t d, CodeType type, float* y, std::int64_t ldy,
                            Stream stream);
// Up to 8 rows of x (n <= 8), aligned to 16 bytes with ldx a multiple of 4; refused otherwise.
LaunchStatus MultiplyCodes(const std::uint8_t* codes, const std::uint16_t* scales, CodeType type,
                           std::int64_t rows, std::int64_t cols, const float* x, std::int64_t ldx,
                           std::int64_t n, float* y, std::int64_t ldy, Stream stream);

// dst[n] = src[n]: the yardstick of memory bandwidth. Both aligned to 16 bytes.
LaunchStatus CopyFloats(const float* src, std::int64_t n, float* dst, Stream stream);

}  // namespace baton::cuda
