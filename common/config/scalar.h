// Scalars of a config file, typed by the schema and never by guess. Every parser takes the text as
// written and returns INVALID_ARGUMENT saying what is allowed. Pure functions.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton::config {

// "true" or "false" only; yes/no/on/off/y/n/1/0 are refused with a message that says so.
absl::StatusOr<bool> ParseBool(std::string_view text);
// [+-]?digits in decimal. Refuses 1.5, 1e3, 0x10, 1_000 and leading zeros (010 is 8 to some readers
// and 10 to others).
absl::StatusOr<int64_t> ParseInt(std::string_view text);
// Decimal: 1, 1.5, .5, 1e-5, 1E+3. Refuses .inf, .nan, hex and values that overflow.
absl::StatusOr<double> ParseDouble(std::string_view text);
// A decimal number directly followed by ns, us, ms, s, m, h or d: 30s, 250ms, 1.5h. "0" needs none.
// Not negative.
absl::StatusOr<std::chrono::nanoseconds> ParseDuration(std::string_view text);
// A plain integer of bytes, or a number followed by B, KiB, MiB, GiB, TiB (powers of 1024) or kB,
// KB, MB, GB, TB (powers of 1000). The result is a whole number of bytes < 2^63.
absl::StatusOr<int64_t> ParseBytes(std::string_view text);

// Shortest exact forms that the parsers above read back: "1m30s" is never used, only one unit.
std::string FormatDuration(std::chrono::nanoseconds duration);
std::string FormatBytes(int64_t bytes);
std::string FormatDouble(double value);  // shortest text that reads back the same

// The candidate nearest to `word` by edit distance, if near enough to be a slip; else "".
std::string Suggest(std::string_view word, const std::vector<std::string>& candidates);

}  // namespace baton::config
