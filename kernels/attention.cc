#include "kernels/attention.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "kernels/cpu_features.h"
#include "kernels/isa_table.h"
#include "kernels/scratch.h"

namespace baton {
namespace {

// Rows (queries x group heads) per unit: their state and one key block stay in L2, and there are
// enough units to share out.
constexpr int kUnitRows = 96;

}  // namespace

std::size_t AttentionScratchFloats(int head_dim, std::int64_t rows) {
  const std::size_t n = static_cast<std::size_t>(rows);
  const std::size_t dim = static_cast<std::size_t>(head_dim) + 15;
  return 2 * kKeyBlock * dim + kMaxTileRows * kKeyBlock + n * (2 * dim + 18) + 64;
}

void Attention(const AttentionShape& shape, const KvPageLayout& layout, const AttentionTask* tasks,
               std::int64_t num_tasks, Executor& executor) {
  const int group = shape.q_heads / shape.kv_heads;
  const std::int32_t block = std::max(1, kUnitRows / group);
  // Kept by the calling thread: a decode step allocates nothing.
  thread_local std::vector<AttentionUnit> kept;
  std::vector<AttentionUnit>& units = kept;
  units.clear();
  for (std::int64_t t = 0; t < num_tasks; ++t) {
    // Late queries see the most keys: first, so that the threads finish together.
    const std::int32_t blocks = (tasks[t].num_q + block - 1) / block;
    for (std::int32_t b = blocks - 1; b >= 0; --b) {
      for (int h = 0; h < shape.kv_heads; ++h) {
        AttentionUnit u;
        u.shape = &shape;
        u.layout = &layout;
        u.task = &tasks[t];
        u.kv_head = h;
        u.q_begin = b * block;
        u.q_end = std::min(tasks[t].num_q, (b + 1) * block);
        units.push_back(u);
      }
    }
  }
  const KernelTable& kernels = Kernels();
  executor.ParallelFor(
      static_cast<std::int64_t>(units.size()), 1, [&](std::int64_t begin, std::int64_t end) {
        float* scratch = ThreadScratch(
            ScratchSlot::kAttention,
            AttentionScratchFloats(shape.head_dim, static_cast<std::int64_t>(block) * group));
        for (std::int64_t i = begin; i < end; ++i) {
          AttentionUnit u = units[static_cast<std::size_t>(i)];
          u.scratch = scratch;
          kernels.attention(u);
        }
      });
}

void KeyMass(const AttentionShape& shape, const KvPageLayout& layout, const AttentionTask& task,
             float* mass, Executor& executor) {
  const int group = shape.q_heads / shape.kv_heads;
  const std::int64_t head_floats = static_cast<std::int64_t>(task.num_q) * group * shape.head_dim;
  float* qt =
      ThreadScratch(ScratchSlot::kQueries, static_cast<std::size_t>(head_floats * shape.kv_heads));
  std::vector<KeyMassUnit> units;
  for (int h = 0; h < shape.kv_heads; ++h) {
    for (int i = task.segment_offsets[h]; i < task.segment_offsets[h + 1]; ++i) {
      const KvSegment& seg = task.segments[i];
      for (std::int32_t row = 0; row < seg.num_rows; row += kKeyBlock) {
        KeyMassUnit u;
        u.shape = &shape;
        u.layout = &layout;
        u.task = &task;
        u.segment = &seg;
        u.kv_head = h;
        u.row_begin = row;
        u.qt = qt + h * head_floats;
        u.mass = mass + row;
        units.push_back(u);
      }
      mass += seg.num_rows;
    }
  }
  const KernelTable& kernels = Kernels();
  executor.ParallelFor(shape.kv_heads, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t h = begin; h < end; ++h) {
      kernels.transpose_queries(shape, task, static_cast<int>(h), 0, task.num_q,
                                qt + h * head_floats);
    }
  });
  executor.ParallelFor(
      static_cast<std::int64_t>(units.size()), 1, [&](std::int64_t begin, std::int64_t end) {
        float* scratch =
            ThreadScratch(ScratchSlot::kAttention, AttentionScratchFloats(shape.head_dim, 0));
        for (std::int64_t i = begin; i < end; ++i) {
          KeyMassUnit u = units[static_cast<std::size_t>(i)];
          u.scratch = scratch;
          kernels.key_mass(u);
        }
      });
}

}  // namespace baton
