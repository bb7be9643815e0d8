// The residual stream of a prefix that arrives from elsewhere, in pages of the pool: what it takes
// is reserved, counted and given back as K/V are.
//
// Not synchronised: distinct rows may be written side by side, and a reader comes after all writers
// (through the engine's queue).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "common/kv_cache/page_pool.h"

namespace baton {

class PrefixStream {
 public:
  // Pages that `rows` rows of `hidden` floats fill.
  static std::int64_t PagesFor(std::int32_t rows, std::int64_t hidden, const KvPageLayout& layout);

  // Rows [begin, end) of the sequence, of no value yet. `pages` promises PagesFor(end - begin) or
  // more.
  PrefixStream(std::int32_t begin, std::int32_t end, std::int64_t hidden,
               const KvPageLayout& layout, Reservation& pages);

  std::int64_t hidden() const { return hidden_; }
  std::int64_t pages() const { return static_cast<std::int64_t>(pages_.size()); }
  // Rows [row, row + rows) within [begin, end), from or to [rows, hidden] floats.
  void Write(std::int32_t row, std::int32_t rows, const float* from);
  void Read(std::int32_t row, std::int32_t rows, float* to) const;

 private:
  // Calls each(pointer, bytes) for the pieces that the rows lie in, in order.
  template <typename Each>
  void ForPieces(std::int32_t row, std::int32_t rows, const Each& each) const;

  const std::int32_t begin_;
  const std::int64_t hidden_;
  const std::size_t page_bytes_;
  std::vector<PageRef> pages_;
};

}  // namespace baton
