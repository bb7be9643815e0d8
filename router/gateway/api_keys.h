// Who may use the public API: keys known by their SHA-256 only.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace baton {

struct ApiKeyEntry {
  std::string name;    // for the log
  std::string sha256;  // of the key's bytes, 64 hex digits
  std::string tenant;  // cache scope of its requests; empty: the router's `scope`
};

// Immutable, so thread-safe.
class ApiKeys {
 public:
  ApiKeys() = default;  // nobody needs a key
  // INVALID_ARGUMENT: a hash that is not 64 hex digits, a key or a name twice, a name without text.
  static absl::StatusOr<ApiKeys> Create(const std::vector<ApiKeyEntry>& entries);

  // `authorization`: the header or metadata of that name, "Bearer KEY". UNAUTHENTICATED: keys are
  // needed and this is none. Takes as long for a wrong key as for a right one.
  absl::StatusOr<std::string> TenantOf(std::string_view authorization) const;

 private:
  using Digest = std::array<std::uint8_t, 32>;
  struct Key {
    Digest digest;
    std::string name;
    std::string tenant;
  };
  std::vector<Key> keys_;
};

}  // namespace baton
