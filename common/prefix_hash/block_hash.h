// Chained hashes that name text, 64 tokens a block:
//
//   H_i = hash128(H_{i-1} || 64 token ids as little-endian u32),  H_{-1} = ChainSeed(...)
//
// A base model and all its fine-tunes share them, because only the tokenizer and the cache scope
// enter the seed. Everything here is pure and thread-safe.
#pragma once

#include <array>
#include <compare>
#include <cstdint>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace baton {

inline constexpr int kBlockTokens = 64;

// XXH3 is fast; SHA-256 (cut to 128 bits) is for tenants who would search for collisions.
enum class BlockHashAlgorithm { kXxh3, kSha256 };

struct BlockHash {
  std::array<uint8_t, 16> bytes{};

  friend auto operator<=>(const BlockHash&, const BlockHash&) = default;
  std::string Hex() const;  // 32 lower-case digits
  static absl::StatusOr<BlockHash> FromHex(std::string_view hex);

  template <typename H>
  friend H AbslHashValue(H state, const BlockHash& hash) {
    return H::combine(std::move(state), hash.bytes);
  }
};

// The start of every chain. `tokenizer_digest` is a content digest, `scope` the tenant's name or
// "global"; both are length-prefixed, so no pair of pairs collides by concatenation.
BlockHash ChainSeed(std::string_view tokenizer_digest, std::string_view scope,
                    BlockHashAlgorithm algorithm = BlockHashAlgorithm::kXxh3);

// `tokens` has exactly kBlockTokens ids.
BlockHash NextBlockHash(const BlockHash& previous, absl::Span<const int32_t> tokens,
                        BlockHashAlgorithm algorithm = BlockHashAlgorithm::kXxh3);

// One hash per *full* block of `tokens`, in order: tokens.size() / 64 of them.
std::vector<BlockHash> ChainHashes(absl::Span<const int32_t> tokens, const BlockHash& seed,
                                   BlockHashAlgorithm algorithm = BlockHashAlgorithm::kXxh3);

// How many leading tokens of a prompt of n may come from somebody else; a multiple of 64.
//   - asked absent: the last 64-token boundary at least 64 tokens before the end;
//   - asked given: floored to a boundary, and to the last boundary that leaves at least one token
//     (the consumer needs logits of its own); values <= 0 give 0.
int64_t ShareablePrefix(int64_t n_tokens, std::optional<int64_t> asked);

// The same, ended before the block that holds the first token id outside [0, producer_vocab).
int64_t ShareablePrefix(absl::Span<const int32_t> tokens, std::optional<int64_t> asked,
                        int64_t producer_vocab);

}  // namespace baton

template <>
struct std::hash<baton::BlockHash> {
  size_t operator()(const baton::BlockHash& hash) const noexcept {
    size_t value;
    std::memcpy(&value, hash.bytes.data(), sizeof(value));
    return value;
  }
};
