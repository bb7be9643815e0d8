// The page tables of one sequence: one table per (layer, KV head), each with its own length.
//
// Owned by the engine thread. Worker threads may write into pages they were handed through a
// landing, never into the table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/kv_cache/page_pool.h"

namespace baton {

class SequenceTable {
 public:
  SequenceTable(int layers, int kv_heads);

  int layers() const { return layers_; }
  int kv_heads() const { return kv_heads_; }
  std::int32_t num_rows(int layer, int head) const { return At(layer, head).num_rows; }
  void set_num_rows(int layer, int head, std::int32_t rows) { At(layer, head).num_rows = rows; }
  // Page pointers in row order, for a KvSegment.
  const std::vector<const std::byte*>& pages(int layer, int head) const {
    return At(layer, head).pointers;
  }
  const std::vector<PageRef>& refs(int layer, int head) const { return At(layer, head).refs; }
  std::byte* page(int layer, int head, std::size_t i) const {
    return At(layer, head).refs[i].data();
  }

  void PushPage(int layer, int head, PageRef page);
  // Drops pages beyond the first `pages` of a table (rows are clamped).
  void Truncate(int layer, int head, std::size_t pages);
  void Clear();
  std::int64_t total_pages() const;

  // Pages that must be added so that every table can hold `rows` rows.
  std::int64_t PagesMissingFor(std::int32_t rows) const;
  // The same for a table set that is empty.
  static std::int64_t PagesFor(std::int32_t rows, int layers, int kv_heads);
  // Adds empty pages from `reservation` until every table can hold `rows` rows.
  void EnsureCapacity(std::int32_t rows, Reservation& reservation);

 private:
  struct Table {
    std::vector<PageRef> refs;
    std::vector<const std::byte*> pointers;
    std::int32_t num_rows = 0;
  };
  Table& At(int layer, int head) {
    return tables_[static_cast<std::size_t>(layer) * kv_heads_ + head];
  }
  const Table& At(int layer, int head) const {
    return tables_[static_cast<std::size_t>(layer) * kv_heads_ + head];
  }
  int layers_;
  int kv_heads_;
  std::vector<Table> tables_;
};

}  // namespace baton
