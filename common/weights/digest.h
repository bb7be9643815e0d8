// XXH3-128 as 32 hex digits.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

namespace baton {

std::string Xxh3Hex(const void* data, size_t bytes);

// Feeds length-prefixed parts, so that no two different sequences hash the same bytes.
class PartDigest {
 public:
  void Add(std::string_view part);
  std::string Hex() const { return Xxh3Hex(bytes_.data(), bytes_.size()); }

 private:
  std::string bytes_;
};

}  // namespace baton
