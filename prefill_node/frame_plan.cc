#include "prefill_node/frame_plan.h"

#include <algorithm>
#include <string_view>

#include "common/scd/code_cut.h"
#include "common/scd/q4_kv.h"
#include "common/scd/stream_rows.h"

namespace baton {
namespace {

ConstSpan Bytes(const std::byte* data, std::size_t size) {
  return ConstSpan(reinterpret_cast<const uint8_t*>(data), size);
}

// Fills in what follows from the report and the payload.
void DescribePayload(FramePlan& plan) {
  std::vector<std::string_view> pieces;
  pieces.reserve(plan.payload.size());
  FrameHeader& header = plan.header;
  for (const ConstSpan& s : plan.payload) {
    pieces.emplace_back(reinterpret_cast<const char*>(s.data()), s.size());
    header.payload_bytes += s.size();
  }
  header.payload_hash = HashPayload(pieces);
}

void Describe(const KvReady& ready, FrameKind kind, std::size_t first_page, std::size_t pages,
              FramePlan& plan) {
  FrameHeader& header = plan.header;
  const std::int64_t base = ready.begin / kPageRows * kPageRows;  // row 0 of the first page
  header.kind = kind;
  header.layer = static_cast<std::uint32_t>(ready.layer);
  header.token_begin =
      static_cast<std::uint32_t>(base + static_cast<std::int64_t>(first_page) * kPageRows);
  header.token_end = static_cast<std::uint32_t>(std::min<std::int64_t>(
      ready.end, base + static_cast<std::int64_t>(first_page + pages) * kPageRows));
  DescribePayload(plan);
}

}  // namespace

FramePlan PlanFrame(const KvReady& ready, const KvPageLayout& layout, std::size_t first_page,
                    std::size_t pages) {
  FramePlan plan;
  std::uint64_t offset = 0;
  const auto add = [&](std::uint32_t head, ChunkComponent component, std::size_t page_offset,
                       std::size_t bytes) {
    plan.chunks.push_back({head, component, offset, pages * bytes});
    offset += pages * bytes;
    for (std::size_t p = first_page; p < first_page + pages; ++p) {
      plan.payload.push_back(Bytes(ready.pages[head][p].data() + page_offset, bytes));
    }
  };
  for (std::uint32_t h = 0; h < ready.pages.size(); ++h) {
    add(h, ChunkComponent::kKey, layout.k_offset(), layout.k_bytes());
    add(h, ChunkComponent::kValue, layout.v_offset(), layout.v_bytes());
    const auto begin = ready.pages[h].begin() + static_cast<std::ptrdiff_t>(first_page);
    plan.held.insert(plan.held.end(), begin, begin + static_cast<std::ptrdiff_t>(pages));
  }
  Describe(ready, FrameKind::kRawKv, first_page, pages, plan);
  return plan;
}

FramePlan PlanQ4Frame(const KvReady& ready, const KvPageLayout& layout, std::size_t first_page,
                      std::size_t pages, std::int32_t first_token) {
  const std::size_t groups = pages / kQ4GroupPages;
  const std::size_t key_bytes = Q4KeyBytes(layout.head_dim);
  const std::size_t value_bytes = Q4ValueBytes(layout.head_dim);
  FramePlan plan;
  plan.coded.resize(ready.pages.size() * groups * (key_bytes + value_bytes));
  std::byte* next = plan.coded.data();
  std::uint64_t offset = 0;
  for (std::uint32_t h = 0; h < ready.pages.size(); ++h) {
    std::byte* keys = next;
    std::byte* values = keys + groups * key_bytes;
    next = values + groups * value_bytes;
    plan.chunks.push_back({h, ChunkComponent::kKey, offset, groups * key_bytes});
    plan.chunks.push_back(
        {h, ChunkComponent::kValue, offset + groups * key_bytes, groups * value_bytes});
    offset += groups * (key_bytes + value_bytes);
    for (std::size_t g = 0; g < groups; ++g) {
      const std::size_t page = first_page + g * kQ4GroupPages;
      const auto row = ready.begin + static_cast<std::int32_t>(page) * kPageRows;
      EncodeQ4(layout, ready.pages[h][page].data(), ready.pages[h][page + 1].data(),
               std::clamp(first_token - row, 0, kQ4GroupRows - 1), keys + g * key_bytes,
               values + g * value_bytes);
    }
  }
  plan.payload.push_back(Bytes(plan.coded.data(), plan.coded.size()));
  Describe(ready, FrameKind::kQ4Kv, first_page, pages, plan);
  return plan;
}

FramePlan PlanCodeFrame(int layer, std::int32_t first_block,
                        std::span<const std::shared_ptr<const BlockCodes>> blocks,
                        std::size_t block_bytes) {
  FramePlan plan;
  for (const auto& block : blocks) plan.payload.push_back(Bytes(block->layer(layer), block_bytes));
  plan.held_codes.assign(blocks.begin(), blocks.end());
  plan.chunks.push_back({0, ChunkComponent::kCode, 0, blocks.size() * block_bytes});
  FrameHeader& header = plan.header;
  header.kind = FrameKind::kCodes;
  header.layer = static_cast<std::uint32_t>(layer);
  header.token_begin = static_cast<std::uint32_t>(first_block * kCodeBlockRows);
  header.token_end =
      header.token_begin + static_cast<std::uint32_t>(blocks.size()) * kCodeBlockRows;
  DescribePayload(plan);
  return plan;
}

FramePlan PlanStreamFrame(const StatesReady& states, std::int32_t first_row, std::int32_t rows) {
  const std::int64_t hidden = states.width - 1;
  FramePlan plan;
  plan.coded.resize(static_cast<std::size_t>(rows) * StreamRowBytes(hidden));
  EncodeStreamRows(states.rows.data() + first_row * states.width, rows, hidden, plan.coded.data());
  plan.payload.push_back(Bytes(plan.coded.data(), plan.coded.size()));
  plan.chunks.push_back({0, ChunkComponent::kRows, 0, plan.coded.size()});
  FrameHeader& header = plan.header;
  header.kind = FrameKind::kStream;
  header.layer = static_cast<std::uint32_t>(states.layer);
  header.token_begin = static_cast<std::uint32_t>(states.begin + first_row);
  header.token_end = header.token_begin + static_cast<std::uint32_t>(rows);
  DescribePayload(plan);
  return plan;
}

}  // namespace baton
