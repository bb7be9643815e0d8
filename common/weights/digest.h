// XXH3-128 as 32 hex digits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace baton {

std::string Xxh3Hex(const void* data, size_t bytes);

// The hash of bytes in memory, made piece by piece on any threads.
class PiecewiseHash {
 public:
  static constexpr size_t kPieceBytes = 1 << 20;

  // `data` must stay until every piece is hashed.
  PiecewiseHash(const std::byte* data, size_t bytes);
  size_t pieces() const { return hashes_.size(); }
  std::string_view piece(size_t i) const { return bytes_.substr(i * kPieceBytes, kPieceBytes); }
  // Each piece once; any thread.
  void Hash(size_t i);
  // When every piece is hashed.
  std::string Hex() const;

 private:
  std::string_view bytes_;
  std::vector<std::pair<uint64_t, uint64_t>> hashes_;
};

// Feeds length-prefixed parts, so that no two different sequences hash the same bytes.
class PartDigest {
 public:
  void Add(std::string_view part);
  std::string Hex() const { return Xxh3Hex(bytes_.data(), bytes_.size()); }

 private:
  std::string bytes_;
};

}  // namespace baton
