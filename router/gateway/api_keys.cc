#include "router/gateway/api_keys.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>

#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace baton {
namespace {

constexpr std::string_view kBearer = "bearer ";

bool IsSha256(const std::string& text) {
  if (text.size() != 64) return false;
  for (const char c : text) {
    if (!absl::ascii_isxdigit(static_cast<unsigned char>(c))) return false;
  }
  return true;
}

std::string_view KeyOf(std::string_view authorization) {
  if (authorization.size() < kBearer.size()) return {};
  const std::string scheme =
      absl::AsciiStrToLower(std::string(authorization.substr(0, kBearer.size())));
  return scheme == kBearer ? authorization.substr(kBearer.size()) : std::string_view();
}

}  // namespace

absl::StatusOr<ApiKeys> ApiKeys::Create(const std::vector<ApiKeyEntry>& entries) {
  ApiKeys keys;
  std::set<std::string> names;
  std::set<std::string> hashes;
  for (size_t i = 0; i < entries.size(); ++i) {
    const ApiKeyEntry& entry = entries[i];
    const std::string at = absl::StrCat("keys[", i, "]");
    if (entry.name.empty()) return absl::InvalidArgumentError(absl::StrCat(at, ".name: is empty"));
    if (!names.insert(entry.name).second) {
      return absl::InvalidArgumentError(
          absl::StrCat(at, ".name: \"", entry.name, "\" is there twice"));
    }
    if (!IsSha256(entry.sha256)) {
      // The value isn't told: it may be a key that somebody forgot to hash.
      return absl::InvalidArgumentError(
          absl::StrCat(at, ".sha256: is not 64 hexadecimal digits (printf %s KEY | sha256sum)"));
    }
    const std::string bytes = absl::HexStringToBytes(entry.sha256);
    if (!hashes.insert(bytes).second) {
      return absl::InvalidArgumentError(absl::StrCat(at, ".sha256: this key is there twice"));
    }
    Key key{{}, entry.name, entry.tenant};
    for (size_t k = 0; k < key.digest.size(); ++k) {
      key.digest[k] = static_cast<std::uint8_t>(bytes[k]);
    }
    keys.keys_.push_back(std::move(key));
  }
  return keys;
}

absl::StatusOr<std::string> ApiKeys::TenantOf(std::string_view authorization) const {
  if (keys_.empty()) return std::string();
  const std::string_view key = KeyOf(authorization);
  Digest digest{};
  if (EVP_Digest(key.data(), key.size(), digest.data(), nullptr, EVP_sha256(), nullptr) != 1) {
    return absl::InternalError("SHA-256 failed");
  }
  const Key* found = nullptr;
  for (const Key& known : keys_) {
    if (CRYPTO_memcmp(known.digest.data(), digest.data(), digest.size()) == 0) found = &known;
  }
  if (found == nullptr || key.empty()) {
    return absl::UnauthenticatedError(key.empty()
                                          ? "an API key is needed: authorization: Bearer KEY"
                                          : "the API key is not known");
  }
  return found->tenant;
}

}  // namespace baton
