// What one frame of a hand-off carries: pages as they are, 4-bit codes of pages, blocks' codes, or
// rows of a residual stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/engine/request.h"
#include "common/transport/transport.h"
#include "common/wire/frame.h"
#include "kernels/kv_page.h"
#include "prefill_node/code_store.h"

namespace baton {

// A frame's header, chunk table and gathered payload: for each KV head its K, then its V.
struct FramePlan {
  FrameHeader header;
  std::vector<FrameChunk> chunks;
  std::vector<ConstSpan> payload;  // lies in what is held, or in coded
  std::vector<PageRef> held;
  std::vector<std::byte> coded;
  std::vector<std::shared_ptr<const BlockCodes>> held_codes;
};
// Pages [first_page, first_page + pages) of the report's list, as they are.
FramePlan PlanFrame(const KvReady& ready, const KvPageLayout& layout, std::size_t first_page,
                    std::size_t pages);
// The same as 4-bit codes: `pages` is even, and the first one starts a group of kQ4GroupRows.
FramePlan PlanQ4Frame(const KvReady& ready, const KvPageLayout& layout, std::size_t first_page,
                      std::size_t pages, std::int32_t first_token);
// The first `block_bytes` of each block's codes of a layer; blocks[0] holds row
// first_block * kCodeBlockRows.
FramePlan PlanCodeFrame(int layer, std::int32_t first_block,
                        std::span<const std::shared_ptr<const BlockCodes>> blocks,
                        std::size_t block_bytes);
// Rows [first_row, first_row + rows) of a report of kHidden states, counted from its first.
FramePlan PlanStreamFrame(const StatesReady& states, std::int32_t first_row, std::int32_t rows);

}  // namespace baton
