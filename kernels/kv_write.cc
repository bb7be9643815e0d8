#include "kernels/kv_write.h"

#include <cstring>

#include "kernels/element.h"

namespace baton {
namespace {

template <DType D>
void Write(const KvPageLayout& layout, std::byte* page, int row, const float* k, const float* v) {
  auto* pk = reinterpret_cast<Element<D>*>(page + layout.k_offset()) + row;
  auto* pv = reinterpret_cast<Element<D>*>(page + layout.v_offset()) + row * layout.head_dim;
  for (int d = 0; d < layout.head_dim; ++d) {
    pk[d * kPageRows] = FromFloat<D>(k[d]);
    pv[d] = FromFloat<D>(v[d]);
  }
}

template <DType D>
void Read(const KvPageLayout& layout, const std::byte* page, int row, float* k, float* v) {
  const auto* pk = reinterpret_cast<const Element<D>*>(page + layout.k_offset()) + row;
  const auto* pv =
      reinterpret_cast<const Element<D>*>(page + layout.v_offset()) + row * layout.head_dim;
  for (int d = 0; d < layout.head_dim; ++d) {
    k[d] = ToFloat<D>(pk[d * kPageRows]);
    v[d] = ToFloat<D>(pv[d]);
  }
}

}  // namespace

void WriteKvRow(const KvPageLayout& layout, std::byte* page, int row, const float* k,
                const float* v, std::int32_t position) {
  PagePositions(page)[row] = position;
  switch (layout.dtype) {
    case DType::kF32:
      return Write<DType::kF32>(layout, page, row, k, v);
    case DType::kBF16:
      return Write<DType::kBF16>(layout, page, row, k, v);
    case DType::kF16:
      return Write<DType::kF16>(layout, page, row, k, v);
  }
}

void CopyKvRows(const KvPageLayout& layout, const std::byte* payload, std::byte* page,
                int row_begin, int row_end) {
  if (row_begin >= row_end) return;
  std::byte* dst = page + layout.k_offset();
  if (row_begin == 0 && row_end == kPageRows) {
    std::memcpy(dst, payload, layout.payload_bytes());
    return;
  }
  const std::size_t size = DTypeSize(layout.dtype);
  const std::size_t rows = static_cast<std::size_t>(row_end - row_begin);
  for (int d = 0; d < layout.head_dim; ++d) {
    const std::size_t at = (static_cast<std::size_t>(d) * kPageRows + row_begin) * size;
    std::memcpy(dst + at, payload + at, rows * size);
  }
  const std::size_t at =
      layout.k_bytes() + static_cast<std::size_t>(row_begin) * layout.head_dim * size;
  std::memcpy(dst + at, payload + at, rows * layout.head_dim * size);
}

void ReadKvRow(const KvPageLayout& layout, const std::byte* page, int row, float* k, float* v) {
  switch (layout.dtype) {
    case DType::kF32:
      return Read<DType::kF32>(layout, page, row, k, v);
    case DType::kBF16:
      return Read<DType::kBF16>(layout, page, row, k, v);
    case DType::kF16:
      return Read<DType::kF16>(layout, page, row, k, v);
  }
}

}  // namespace baton
