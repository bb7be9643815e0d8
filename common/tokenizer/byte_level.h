// GPT-2's byte-level alphabet: each of the 256 bytes is spelled as one printable character.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace baton {

// The character (UTF-8) that spells `byte`: "Ġ" for a space.
const std::string& ByteLevelSpelling(uint8_t byte);

// The bytes a vocabulary entry stands for; nullopt when a character is not of the alphabet.
// `token` is valid UTF-8.
std::optional<std::string> ByteLevelBytes(std::string_view token);

}  // namespace baton
