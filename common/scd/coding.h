// How K/V travel in a hand-off. The name of a coding is that of the strategy that asks for it.
#pragma once

#include <optional>
#include <string_view>

namespace baton {

enum class Coding {
  kRaw,    // rows as they lie in the producer's pages
  kQ4,     // 4-bit codes (q4_kv.h), the newest rows raw
  kReuse,  // a codec's codes (codec.h), which its consumer turns into K/V of its own
  // As kRaw, but for a run of layers, which the consumer computes from the residual stream that
  // enters them (stream_rows.h).
  kSelective,
};

// "raw", "q4", "reuse", "selective".
const char* CodingName(Coding coding);
// Nothing for another name.
std::optional<Coding> ParseCoding(std::string_view name);

}  // namespace baton
