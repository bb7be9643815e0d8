#include "common/kv_cache/sequence_table.h"

#include <algorithm>
#include <utility>

namespace baton {
namespace {

std::size_t PageCount(std::int32_t rows) {
  return static_cast<std::size_t>((rows + kPageRows - 1) / kPageRows);
}

}  // namespace

SequenceTable::SequenceTable(int layers, int kv_heads)
    : layers_(layers), kv_heads_(kv_heads), tables_(static_cast<std::size_t>(layers) * kv_heads) {}

void SequenceTable::PushPage(int layer, int head, PageRef page) {
  Table& table = At(layer, head);
  table.pointers.push_back(page.data());
  table.refs.push_back(std::move(page));
}

void SequenceTable::Truncate(int layer, int head, std::size_t pages) {
  Table& table = At(layer, head);
  if (table.refs.size() > pages) {
    table.refs.resize(pages);
    table.pointers.resize(pages);
  }
  table.num_rows = std::min(table.num_rows, static_cast<std::int32_t>(pages) * kPageRows);
}

void SequenceTable::Clear() {
  for (Table& table : tables_) table = Table();
}

std::int64_t SequenceTable::total_pages() const {
  std::int64_t pages = 0;
  for (const Table& table : tables_) pages += static_cast<std::int64_t>(table.refs.size());
  return pages;
}

std::int64_t SequenceTable::PagesMissingFor(std::int32_t rows) const {
  const std::size_t want = PageCount(rows);
  std::int64_t missing = 0;
  for (const Table& table : tables_) {
    if (table.refs.size() < want) missing += static_cast<std::int64_t>(want - table.refs.size());
  }
  return missing;
}

std::int64_t SequenceTable::PagesFor(std::int32_t rows, int layers, int kv_heads) {
  return static_cast<std::int64_t>(PageCount(rows)) * layers * kv_heads;
}

void SequenceTable::EnsureCapacity(std::int32_t rows, Reservation& reservation) {
  const std::size_t want = PageCount(rows);
  for (Table& table : tables_) {
    while (table.refs.size() < want) {
      PageRef page = reservation.Take();
      table.pointers.push_back(page.data());
      table.refs.push_back(std::move(page));
    }
  }
}

}  // namespace baton
