// Writing rows into pages and reading them back.
#pragma once

#include <cstdint>

#include "kernels/kv_page.h"

namespace baton {

// Stores one token row: k [head_dim] (rotated) and v [head_dim], fp32, converted to the page's
// dtype (nearest even), with its position. `row` in [0, 16).
void WriteKvRow(const KvPageLayout& layout, std::byte* page, int row, const float* k,
                const float* v, std::int32_t position);

// Copies rows [row_begin, row_end) of K and V (not positions) from `payload` (K then V, as in a
// page of the same layout) into `page`.
void CopyKvRows(const KvPageLayout& layout, const std::byte* payload, std::byte* page,
                int row_begin, int row_end);

// One row back as fp32.
void ReadKvRow(const KvPageLayout& layout, const std::byte* page, int row, float* k, float* v);

}  // namespace baton
