// The inner loops that exist once per instruction set. Internal to the room.
//
// Every level computes the same bits: 16 logical lanes, explicit fused multiply-adds, one
// reduction tree (kernels/simd.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/attention.h"
#include "kernels/kv_page.h"
#include "kernels/panel.h"
#include "kernels/weight_format.h"

namespace baton {

inline constexpr int kMaxTileRows = 12;  // rows of x per register tile
inline constexpr int kKeyBlock = 64;     // keys per step of the online softmax: 4 pages

// acc[p][r][32] (+)= sum over k of xt[k][r] * w_p[k][32], for `panels` panels `panel_stride`
// bytes apart and `rows` rows (1..12). xt holds `rows` floats per k.
struct GemmTileArgs {
  WeightFormat format = WeightFormat::kF32;
  int rows = 0;
  int panels = 1;  // 1..4
  std::int64_t k = 0;
  const float* xt = nullptr;
  const std::byte* w = nullptr;
  std::size_t panel_stride = 0;
  float* acc = nullptr;
  bool first = true;  // start from zero instead of acc
};

// One KV head of one task for queries [q_begin, q_end).
struct AttentionUnit {
  const AttentionShape* shape = nullptr;
  const KvPageLayout* layout = nullptr;
  const AttentionTask* task = nullptr;
  int kv_head = 0;
  std::int32_t q_begin = 0;
  std::int32_t q_end = 0;
  float* scratch = nullptr;  // AttentionScratchFloats()
};

// Key masses of rows [row_begin, row_begin + 64) of one segment.
struct KeyMassUnit {
  const AttentionShape* shape = nullptr;
  const KvPageLayout* layout = nullptr;
  const AttentionTask* task = nullptr;
  const KvSegment* segment = nullptr;
  int kv_head = 0;
  std::int32_t row_begin = 0;
  const float* qt = nullptr;  // transposed query tiles of this head
  float* mass = nullptr;      // [min(64, num_rows - row_begin)]
  float* scratch = nullptr;   // AttentionScratchFloats()
};

struct KernelTable {
  void (*gemm_tile)(const GemmTileArgs&);
  // k x 32 weights of one panel as fp32; of a quantised format whole blocks: dst has room for k
  // rounded up to 32.
  void (*unpack_panel)(WeightFormat, const std::byte* w, std::int64_t k, float* dst);
  void (*attention)(const AttentionUnit&);
  void (*key_mass)(const KeyMassUnit&);
  // Query tiles of one head as KeyMassUnit wants them: rows * head_dim floats.
  void (*transpose_queries)(const AttentionShape&, const AttentionTask&, int kv_head,
                            std::int32_t q_begin, std::int32_t q_end, float* qt);
  void (*rms_norm)(const float* x, const float* gamma, float eps, std::int64_t d, float* y);
  void (*rope)(float* x, std::int32_t position, const float* inv_freq, float scaling, int heads,
               int head_dim);
  void (*silu_mul)(const float* gate, const float* up, std::int64_t d, float* y);
  void (*add)(float* x, const float* y, std::int64_t d);
  float (*max)(const float* x, std::int64_t d);
  // sum of exp(x - shift), accumulated in fp64.
  double (*sum_exp)(const float* x, float shift, std::int64_t d);
};

const KernelTable& GenericKernels();
const KernelTable& Avx2Kernels();
const KernelTable& Avx512Kernels();

// Floats of scratch for a unit of `rows` = queries * group rows.
std::size_t AttentionScratchFloats(int head_dim, std::int64_t rows);

}  // namespace baton
