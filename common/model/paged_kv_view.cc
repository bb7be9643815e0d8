#include "common/model/paged_kv_view.h"

#include "kernels/kv_write.h"

namespace baton {

PagedKvView::PagedKvView(SequenceTable& table, const KvPageLayout& layout)
    : table_(table), layout_(layout) {
  segments_.segments.resize(table.kv_heads());
  segments_.offsets.resize(table.kv_heads() + 1);
  for (int h = 0; h <= table.kv_heads(); ++h) segments_.offsets[h] = h;
}

void PagedKvView::Append(int layer, const KvRows& rows) {
  const std::int64_t n = static_cast<std::int64_t>(rows.positions.size());
  for (int h = 0; h < table_.kv_heads(); ++h) {
    const std::int32_t base = table_.num_rows(layer, h);
    const std::int64_t column = static_cast<std::int64_t>(h) * layout_.head_dim;
    for (std::int64_t r = 0; r < n; ++r) {
      const std::int64_t row = base + r;
      WriteKvRow(layout_, table_.page(layer, h, static_cast<std::size_t>(row / kPageRows)),
                 static_cast<int>(row % kPageRows), rows.k + r * rows.ldk + column,
                 rows.v + r * rows.ldv + column, rows.positions[r]);
    }
    table_.set_num_rows(layer, h, base + static_cast<std::int32_t>(n));
  }
}

const LayerSegments& PagedKvView::Select(int layer, const QueryBlock&) {
  for (int h = 0; h < table_.kv_heads(); ++h) {
    KvSegment& segment = segments_.segments[h];
    segment.pages = table_.pages(layer, h).data();
    segment.num_rows = table_.num_rows(layer, h);
    segment.bias = nullptr;
    segment.sorted = true;
  }
  return segments_;
}

}  // namespace baton
