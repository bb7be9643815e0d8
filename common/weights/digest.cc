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

void PartDigest::Add(std::string_view part) {
  const uint64_t size = part.size();
  bytes_.append(reinterpret_cast<const char*>(&size), sizeof(size));
  bytes_.append(part);
}

}  // namespace baton
