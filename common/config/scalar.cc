#include "common/config/scalar.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <limits>

#include "absl/status/status.h"
#include "common/base/strings.h"

namespace baton::config {
namespace {

absl::Status NotA(std::string_view text, std::string_view what) {
  return absl::InvalidArgumentError(fmt::format("'{}' is not {}", text, what));
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

bool AllDigits(std::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), IsDigit);
}

std::string Lower(std::string_view text) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return lower;
}

// Digits with at most one point and at least one digit; no sign, no exponent.
bool IsPlainDecimal(std::string_view text) {
  const size_t point = text.find('.');
  const std::string_view whole = text.substr(0, point);
  const std::string_view part =
      point == std::string_view::npos ? std::string_view() : text.substr(point + 1);
  if (!whole.empty() && !AllDigits(whole)) return false;
  if (!part.empty() && !AllDigits(part)) return false;
  return !whole.empty() || !part.empty();
}

// `number` (IsPlainDecimal) times `scale`, which must come out whole and fit in int64.
bool Scale(std::string_view number, int64_t scale, int64_t& result) {
  if (AllDigits(number)) {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), value);
    return error == std::errc() && !__builtin_mul_overflow(value, scale, &result);
  }
  long double value = 0;
  if (std::from_chars(number.data(), number.data() + number.size(), value).ec != std::errc()) {
    return false;
  }
  const long double scaled = value * static_cast<long double>(scale);
  const long double rounded = std::round(scaled);
  if (rounded > 9.2e18L || std::fabs(scaled - rounded) > 1e-6L) return false;
  result = static_cast<int64_t>(rounded);
  return true;
}

struct Unit {
  std::string_view name;
  int64_t scale;
};

constexpr Unit kDurationUnits[] = {{"ns", 1},
                                   {"us", 1'000},
                                   {"ms", 1'000'000},
                                   {"s", 1'000'000'000},
                                   {"m", 60'000'000'000},
                                   {"h", 3'600'000'000'000},
                                   {"d", 86'400'000'000'000}};

constexpr Unit kByteUnits[] = {{"B", 1},
                               {"KiB", int64_t{1} << 10},
                               {"MiB", int64_t{1} << 20},
                               {"GiB", int64_t{1} << 30},
                               {"TiB", int64_t{1} << 40},
                               {"kB", 1'000},
                               {"KB", 1'000},
                               {"MB", 1'000'000},
                               {"GB", 1'000'000'000},
                               {"TB", 1'000'000'000'000}};

constexpr std::string_view kDurationHelp =
    "a duration (a number and one of ns, us, ms, s, m, h, d, such as 30s, 250ms or 1.5h)";
constexpr std::string_view kBytesHelp =
    "a size (bytes, or a number and one of B, KiB, MiB, GiB, TiB, kB, MB, GB, TB, such as 2GiB)";

absl::StatusOr<int64_t> ParseWithUnit(std::string_view text, absl::Span<const Unit> units,
                                      std::string_view what) {
  size_t split = 0;
  while (split < text.size() && (IsDigit(text[split]) || text[split] == '.')) ++split;
  const std::string_view number = text.substr(0, split);
  const std::string_view name = text.substr(split);
  if (!IsPlainDecimal(number)) return NotA(text, what);
  for (const Unit& unit : units) {
    if (unit.name != name) continue;
    int64_t result = 0;
    if (Scale(number, unit.scale, result)) return result;
    return absl::InvalidArgumentError(
        fmt::format("'{}' is too large or not a whole number of {}", text, units[0].name));
  }
  return NotA(text, what);
}

// The largest unit that divides `value`.
std::string FormatWithUnit(int64_t value, absl::Span<const Unit> units) {
  const Unit* best = &units[0];
  for (const Unit& unit : units) {
    if (value % unit.scale == 0 && unit.scale > best->scale) best = &unit;
  }
  return fmt::format("{}{}", value / best->scale, best->name);
}

// Optimal string alignment: insert, delete, replace, swap of neighbours each cost one.
size_t EditDistance(std::string_view a, std::string_view b) {
  std::vector<std::vector<size_t>> d(a.size() + 1, std::vector<size_t>(b.size() + 1));
  for (size_t i = 0; i <= a.size(); ++i) d[i][0] = i;
  for (size_t j = 0; j <= b.size(); ++j) d[0][j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    for (size_t j = 1; j <= b.size(); ++j) {
      d[i][j] = std::min(
          {d[i - 1][j] + 1, d[i][j - 1] + 1, d[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1)});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        d[i][j] = std::min(d[i][j], d[i - 2][j - 2] + 1);
      }
    }
  }
  return d[a.size()][b.size()];
}

}  // namespace

absl::StatusOr<bool> ParseBool(std::string_view text) {
  if (text == "true") return true;
  if (text == "false") return false;
  const std::string lower = Lower(text);
  for (std::string_view yes : {"yes", "on", "y", "1", "true"}) {
    if (lower == yes) {
      return absl::InvalidArgumentError(fmt::format("'{}' is not a boolean; write true", text));
    }
  }
  for (std::string_view no : {"no", "off", "n", "0", "false"}) {
    if (lower == no) {
      return absl::InvalidArgumentError(fmt::format("'{}' is not a boolean; write false", text));
    }
  }
  return NotA(text, "a boolean (true or false)");
}

absl::StatusOr<int64_t> ParseInt(std::string_view text) {
  std::string_view digits = text;
  if (!digits.empty() && (digits[0] == '+' || digits[0] == '-')) digits.remove_prefix(1);
  if (!AllDigits(digits)) return NotA(text, "an integer (decimal digits only, such as 8080)");
  if (digits.size() > 1 && digits[0] == '0') {
    return absl::InvalidArgumentError(
        fmt::format("'{}' has a leading zero, which some readers take for octal; write it "
                    "without",
                    text));
  }
  if (text[0] == '+') text.remove_prefix(1);
  int64_t value = 0;
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc()) {
    return absl::InvalidArgumentError(fmt::format("'{}' does not fit in 64 bits", text));
  }
  return value;
}

absl::StatusOr<double> ParseDouble(std::string_view text) {
  std::string_view rest = text;
  if (!rest.empty() && (rest[0] == '+' || rest[0] == '-')) rest.remove_prefix(1);
  const size_t e = rest.find_first_of("eE");
  bool fine = IsPlainDecimal(rest.substr(0, e));
  if (fine && e != std::string_view::npos) {
    std::string_view exponent = rest.substr(e + 1);
    if (!exponent.empty() && (exponent[0] == '+' || exponent[0] == '-')) exponent.remove_prefix(1);
    fine = AllDigits(exponent);
  }
  if (!fine) return NotA(text, "a number (such as 0.5, 3 or 1e-5)");
  if (text[0] == '+') text.remove_prefix(1);
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(value)) {
    return absl::InvalidArgumentError(fmt::format("'{}' does not fit in a double", text));
  }
  return value;
}

absl::StatusOr<std::chrono::nanoseconds> ParseDuration(std::string_view text) {
  if (text == "0") return std::chrono::nanoseconds(0);
  const absl::StatusOr<int64_t> ns = ParseWithUnit(text, kDurationUnits, kDurationHelp);
  if (!ns.ok()) return ns.status();
  return std::chrono::nanoseconds(*ns);
}

absl::StatusOr<int64_t> ParseBytes(std::string_view text) {
  if (AllDigits(text)) return ParseInt(text);
  return ParseWithUnit(text, kByteUnits, kBytesHelp);
}

std::string FormatDuration(std::chrono::nanoseconds duration) {
  if (duration.count() == 0) return "0s";
  return FormatWithUnit(duration.count(), kDurationUnits);
}

std::string FormatBytes(int64_t bytes) {
  if (bytes == 0) return "0";
  const std::string text = FormatWithUnit(bytes, absl::MakeSpan(kByteUnits).subspan(0, 5));
  return text.ends_with("iB") ? text : std::to_string(bytes);
}

std::string FormatDouble(double value) { return fmt::format("{}", value); }

std::string Suggest(std::string_view word, const std::vector<std::string>& candidates) {
  if (word.empty() || word.size() > 64) return "";
  std::string folded = Lower(word);
  std::replace(folded.begin(), folded.end(), '-', '_');
  size_t best = std::min<size_t>(3, std::max<size_t>(1, word.size() / 3)) + 1;
  std::string nearest;
  for (const std::string& candidate : candidates) {
    const std::string other = Lower(candidate);
    // "warning" for "warn", "max" for "max_batch".
    const size_t shorter = std::min(folded.size(), other.size());
    const bool prefix = shorter >= 3 && folded.compare(0, shorter, other, 0, shorter) == 0;
    const size_t distance = prefix ? 1 : EditDistance(folded, other);
    if (distance < best) {
      best = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

}  // namespace baton::config
