// What this build calls itself.
#pragma once

#include <cstdint>
#include <string_view>

namespace baton {

// Version of the hand-off protocol (Prefill.* and the frames). Peers with another are refused at
// link time.
inline constexpr uint32_t kProtocolVersion = 1;

// "0.1.0", from CMake's project version.
std::string_view Version();

}  // namespace baton
