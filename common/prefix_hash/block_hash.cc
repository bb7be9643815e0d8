#include "common/prefix_hash/block_hash.h"

#include <openssl/sha.h>
#include <xxhash.h>

#include <algorithm>

#include "common/base/ids.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace baton {
namespace {

static_assert(sizeof(XXH128_canonical_t) == sizeof(BlockHash::bytes));

BlockHash Hash128(const void* data, size_t size, BlockHashAlgorithm algorithm) {
  BlockHash hash;
  if (algorithm == BlockHashAlgorithm::kSha256) {
    unsigned char digest[SHA256_DIGEST_LENGTH];
    SHA256(static_cast<const unsigned char*>(data), size, digest);
    std::memcpy(hash.bytes.data(), digest, hash.bytes.size());
    return hash;
  }
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits(data, size));
  std::memcpy(hash.bytes.data(), canonical.digest, hash.bytes.size());
  return hash;
}

void AppendLengthPrefixed(std::string_view text, std::string& out) {
  for (int shift = 0; shift < 64; shift += 8) {
    out += static_cast<char>(static_cast<uint64_t>(text.size()) >> shift & 0xFF);
  }
  out += text;
}

}  // namespace

std::string BlockHash::Hex() const {
  return HexEncode({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

absl::StatusOr<BlockHash> BlockHash::FromHex(std::string_view hex) {
  if (hex.size() != 32) {
    return absl::InvalidArgumentError("block hash: expected 32 hex digits, got " +
                                      std::to_string(hex.size()) + " characters");
  }
  const absl::StatusOr<std::string> raw = HexDecode(hex);
  if (!raw.ok()) {
    return absl::InvalidArgumentError(fmt::format("block hash: {}", raw.status().message()));
  }
  BlockHash hash;
  std::memcpy(hash.bytes.data(), raw->data(), hash.bytes.size());
  return hash;
}

BlockHash ChainSeed(std::string_view tokenizer_digest, std::string_view scope,
                    BlockHashAlgorithm algorithm) {
  std::string text = "baton block chain v1\n";
  text += algorithm == BlockHashAlgorithm::kSha256 ? "sha256\n" : "xxh3\n";
  AppendLengthPrefixed(tokenizer_digest, text);
  AppendLengthPrefixed(scope, text);
  return Hash128(text.data(), text.size(), algorithm);
}

BlockHash NextBlockHash(const BlockHash& previous, absl::Span<const int32_t> tokens,
                        BlockHashAlgorithm algorithm) {
  std::array<uint8_t, 16 + 4 * kBlockTokens> text;
  std::memcpy(text.data(), previous.bytes.data(), 16);
  const size_t count = std::min<size_t>(tokens.size(), kBlockTokens);
  for (size_t i = 0; i < count; ++i) {
    const auto id = static_cast<uint32_t>(tokens[i]);
    for (size_t b = 0; b < 4; ++b) text[16 + 4 * i + b] = static_cast<uint8_t>(id >> (8 * b));
  }
  return Hash128(text.data(), 16 + 4 * count, algorithm);
}

std::vector<BlockHash> ChainHashes(absl::Span<const int32_t> tokens, const BlockHash& seed,
                                   BlockHashAlgorithm algorithm) {
  std::vector<BlockHash> hashes;
  hashes.reserve(tokens.size() / kBlockTokens);
  BlockHash previous = seed;
  for (size_t begin = 0; begin + kBlockTokens <= tokens.size(); begin += kBlockTokens) {
    previous = NextBlockHash(previous, tokens.subspan(begin, kBlockTokens), algorithm);
    hashes.push_back(previous);
  }
  return hashes;
}

int64_t ShareablePrefix(int64_t n_tokens, std::optional<int64_t> asked) {
  const auto floor = [](int64_t n) { return n <= 0 ? 0 : n / kBlockTokens * kBlockTokens; };
  if (!asked) return floor(n_tokens - kBlockTokens);
  return floor(std::min(*asked, n_tokens - 1));
}

int64_t ShareablePrefix(absl::Span<const int32_t> tokens, std::optional<int64_t> asked,
                        int64_t producer_vocab) {
  int64_t prefix = ShareablePrefix(static_cast<int64_t>(tokens.size()), asked);
  for (int64_t i = 0; i < prefix; ++i) {
    if (tokens[i] < 0 || tokens[i] >= producer_vocab) return i / kBlockTokens * kBlockTokens;
  }
  return prefix;
}

}  // namespace baton
