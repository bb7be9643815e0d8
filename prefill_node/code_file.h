// The bytes of a spilled block's file. Numbers are little-endian.
//
//   at  bytes
//    0      4  "BTNB"
//    4      2  version, 1
//    6      2  S, bytes of the space's name
//    8      8  C, bytes of codes
//   16     16  block hash
//   32      S  the code space
//          C  codes: the layers one after the other, each as in common/scd/code_cut.h
//           8  XXH3-64 of all that is before it
//
// The name is what the file is for: "<block hash>-<XXH3-128 of the space>.code", both in hex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/prefix_hash/block_hash.h"

namespace baton {

// A block, and the hash of its code space.
using CodeFileKey = std::pair<BlockHash, BlockHash>;

CodeFileKey MakeCodeFileKey(const BlockHash& block, std::string_view space);
std::string CodeFileName(const CodeFileKey& key);
// Nothing for a name that is not of this form.
std::optional<CodeFileKey> ParseCodeFileName(std::string_view name);

// Of a whole file.
std::size_t CodeFileBytes(std::string_view space, std::size_t code_bytes);
// `space` is shorter than 64 KiB.
std::string EncodeCodeFile(const BlockHash& block, std::string_view space,
                           absl::Span<const std::byte> codes);
// The `code_bytes` bytes of codes in `file`, which must outlive them. DATA_LOSS says what is not
// as it was written for this block and space.
absl::StatusOr<std::string_view> ParseCodeFile(std::string_view file, const BlockHash& block,
                                               std::string_view space, std::size_t code_bytes);

}  // namespace baton
