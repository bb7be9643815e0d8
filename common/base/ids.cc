#include "common/base/ids.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace baton {
namespace {

void FillRandom(char* data, size_t count) {
  while (count > 0) {
    const ssize_t got = getrandom(data, count, 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      std::perror("getrandom");  // impossible on a kernel that runs this binary
      std::abort();
    }
    data += got;
    count -= static_cast<size_t>(got);
  }
}

int HexValue(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

uint64_t RandomId64() {
  uint64_t id = 0;
  while (id == 0) FillRandom(reinterpret_cast<char*>(&id), sizeof(id));
  return id;
}

std::string RandomBytes(size_t count) {
  std::string bytes(count, '\0');
  FillRandom(bytes.data(), count);
  return bytes;
}

std::string NewRequestId() { return HexEncode(RandomBytes(16)); }

std::string HexEncode(std::string_view bytes) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string hex;
  hex.reserve(bytes.size() * 2);
  for (const char c : bytes) {
    const auto byte = static_cast<unsigned char>(c);
    hex += kDigits[byte >> 4];
    hex += kDigits[byte & 15];
  }
  return hex;
}

std::string HexId(uint64_t id) {
  std::string bytes(8, '\0');
  for (int i = 7; i >= 0; --i, id >>= 8) bytes[i] = static_cast<char>(id & 0xFF);
  return HexEncode(bytes);
}

absl::StatusOr<std::string> HexDecode(std::string_view hex) {
  if (hex.size() % 2 != 0) {
    return absl::InvalidArgumentError("hex text has an odd number of digits (" +
                                      std::to_string(hex.size()) + ")");
  }
  std::string bytes;
  bytes.reserve(hex.size() / 2);
  for (size_t i = 0; i < hex.size(); i += 2) {
    const int high = HexValue(hex[i]);
    const int low = HexValue(hex[i + 1]);
    if (high < 0 || low < 0) {
      return absl::InvalidArgumentError("not a hex digit at position " +
                                        std::to_string(high < 0 ? i : i + 1));
    }
    bytes += static_cast<char>(high << 4 | low);
  }
  return bytes;
}

bool ConstantTimeEquals(std::string_view a, std::string_view b) {
  if (a.size() != b.size()) return false;
  volatile unsigned char difference = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference = difference | static_cast<unsigned char>(a[i] ^ b[i]);
  }
  return difference == 0;
}

}  // namespace baton
