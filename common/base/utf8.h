// The smallest useful piece of UTF-8.
#pragma once

#include <cstddef>
#include <string_view>

namespace baton {

// Bytes of the valid UTF-8 sequence at the start of `text` (1 to 4), 0 if it is invalid, cut off or
// `text` is empty. Overlong forms and surrogates are invalid.
size_t Utf8SequenceLength(std::string_view text);

bool IsValidUtf8(std::string_view text);

}  // namespace baton
