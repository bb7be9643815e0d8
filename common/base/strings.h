// Debian's Abseil is built with its own string_view, which std::string_view doesn't convert to.
// These two go between them without a copy:
//
//   absl::StrCat("unknown key ", AbslView(key));      std::string_view text =
//   StdView(status.message());
//
// fmt (and so BATON_LOG_*) prints both kinds once this header or logging.h is included.
#pragma once

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "spdlog/fmt/fmt.h"

namespace baton {

inline absl::string_view AbslView(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view StdView(absl::string_view text) { return {text.data(), text.size()}; }

// absl::StrCat that also takes std::string_view.
template <typename T>
const T& CatArgument(const T& value) {
  return value;
}
inline absl::string_view CatArgument(std::string_view text) { return AbslView(text); }
inline absl::string_view CatArgument(const std::string& text) { return text; }
inline absl::string_view CatArgument(const char* text) { return text; }

template <typename... Ts>
std::string Cat(const Ts&... values) {
  return absl::StrCat(CatArgument(values)...);
}

}  // namespace baton

#if !defined(ABSL_USES_STD_STRING_VIEW)
template <>
struct fmt::formatter<absl::string_view> : fmt::formatter<std::string_view> {
  template <typename Context>
  auto format(absl::string_view text, Context& context) const {
    return fmt::formatter<std::string_view>::format(baton::StdView(text), context);
  }
};
#endif
