// Blocks and codes of known bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>

#include "common/prefix_hash/block_hash.h"
#include "common/scd/code_cut.h"
#include "prefill_node/block_codes.h"

namespace baton {

inline BlockHash MadeBlock(std::uint8_t n) { return {{n}}; }

// One layer, one component of 8 bits: 64 bytes a block.
inline CodeCut MadeCut() { return WholeCode({{{{8}, {1.0f}}}}); }

// Every byte is `fill`.
inline std::shared_ptr<const BlockCodes> MadeCodes(std::uint8_t fill = 0) {
  auto codes = std::make_shared<BlockCodes>(MadeCut());
  std::fill_n(codes->data(), codes->bytes(), std::byte{fill});
  return codes;
}

inline bool AllAre(const BlockCodes& codes, std::uint8_t fill) {
  return codes.bytes() == 64 && std::all_of(codes.data(), codes.data() + codes.bytes(),
                                            [&](std::byte b) { return b == std::byte{fill}; });
}

// Of MadeCodes in a space whose name is one letter: header, name, codes, checksum.
inline constexpr std::int64_t kMadeFileBytes = 32 + 1 + 64 + 8;

}  // namespace baton
