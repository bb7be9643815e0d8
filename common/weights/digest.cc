#include "common/weights/digest.h"

#include <cstdint>

#include "absl/strings/str_cat.h"

#define XXH_INLINE_ALL
#include "xxhash.h"

namespace baton {

std::string Xxh3Hex(const void* data, size_t bytes) {
  const XXH128_hash_t hash = XXH3_128bits(data, bytes);
  return absl::StrCat(absl::Hex(hash.high64, absl::kZeroPad16),
                      absl::Hex(hash.low64, absl::kZeroPad16));
}

PiecewiseHash::PiecewiseHash(const std::byte* data, size_t bytes)
    : bytes_(reinterpret_cast<const char*>(data), bytes),
      hashes_((bytes + kPieceBytes - 1) / kPieceBytes) {}

void PiecewiseHash::Hash(size_t i) {
  const std::string_view p = piece(i);
  const XXH128_hash_t hash = XXH3_128bits(p.data(), p.size());
  hashes_[i] = {hash.high64, hash.low64};
}

std::string PiecewiseHash::Hex() const {
  return Xxh3Hex(hashes_.data(), hashes_.size() * sizeof(hashes_[0]));
}

void PartDigest::Add(std::string_view part) {
  const uint64_t size = part.size();
  bytes_.append(reinterpret_cast<const char*>(&size), sizeof(size));
  bytes_.append(part);
}

}  // namespace baton
