// Random identifiers and hex. All randomness is the kernel's (getrandom), so ids can't be guessed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace baton {

// Never 0, so that 0 can mean "none".
uint64_t RandomId64();
std::string RandomBytes(size_t count);
// Names one run of a process; never 0. A restart gets another.
inline uint64_t NewIncarnation() { return RandomId64(); }
// 32 hex digits.
std::string NewRequestId();

// Lower case, two digits a byte.
std::string HexEncode(std::string_view bytes);
// 16 lower-case digits, most significant first.
std::string HexId(uint64_t id);
// Either case. INVALID_ARGUMENT for an odd length or another character.
absl::StatusOr<std::string> HexDecode(std::string_view hex);
// Equal lengths are compared in constant time; for secrets.
bool ConstantTimeEquals(std::string_view a, std::string_view b);

}  // namespace baton
