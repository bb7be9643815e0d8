#include "common/engine/prefix_stream.h"

#include <algorithm>
#include <cstddef>
#include <cstring>

namespace baton {

std::int64_t PrefixStream::PagesFor(std::int32_t rows, std::int64_t hidden,
                                    const KvPageLayout& layout) {
  const auto bytes = rows * hidden * static_cast<std::int64_t>(sizeof(float));
  const auto page_bytes = static_cast<std::int64_t>(layout.page_bytes());
  return (bytes + page_bytes - 1) / page_bytes;
}

PrefixStream::PrefixStream(std::int32_t begin, std::int32_t end, std::int64_t hidden,
                           const KvPageLayout& layout, Reservation& pages)
    : begin_(begin), hidden_(hidden), page_bytes_(layout.page_bytes()) {
  const std::int64_t count = PagesFor(end - begin, hidden, layout);
  for (std::int64_t i = 0; i < count; ++i) pages_.push_back(pages.Take());
}

template <typename Each>
void PrefixStream::ForPieces(std::int32_t row, std::int32_t rows, const Each& each) const {
  const std::size_t row_bytes = static_cast<std::size_t>(hidden_) * sizeof(float);
  std::size_t at = static_cast<std::size_t>(row - begin_) * row_bytes;
  const std::size_t end = at + static_cast<std::size_t>(rows) * row_bytes;
  while (at < end) {
    const std::size_t offset = at % page_bytes_;
    const std::size_t bytes = std::min(end - at, page_bytes_ - offset);
    each(pages_[at / page_bytes_].data() + offset, bytes);
    at += bytes;
  }
}

void PrefixStream::Write(std::int32_t row, std::int32_t rows, const float* from) {
  const auto* next = reinterpret_cast<const std::byte*>(from);
  ForPieces(row, rows, [&next](std::byte* piece, std::size_t bytes) {
    std::memcpy(piece, next, bytes);
    next += bytes;
  });
}

void PrefixStream::Read(std::int32_t row, std::int32_t rows, float* to) const {
  auto* next = reinterpret_cast<std::byte*>(to);
  ForPieces(row, rows, [&next](const std::byte* piece, std::size_t bytes) {
    std::memcpy(next, piece, bytes);
    next += bytes;
  });
}

}  // namespace baton
