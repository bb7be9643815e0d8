// Stop strings, one a line, a line "---", the text: pushed in pieces, against a plain search.
#include <algorithm>

#include "absl/strings/str_split.h"
#include "common/tokenizer/stop_matcher.h"
#include "tests/fuzz/fuzz_util.h"

namespace baton {

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto parts = FuzzParts(FuzzText(data, size), 2);
  std::vector<std::string> stops;
  if (!parts[0].empty()) {
    for (const auto stop :
         absl::StrSplit(absl::string_view(parts[0].data(), parts[0].size()), '\n')) {
      stops.emplace_back(stop);
    }
  }
  const auto fresh = StopMatcher::Create(stops);
  if (!fresh.ok()) {
    CheckError(fresh.status());
    return 0;
  }
  const std::string_view text = parts[1];
  size_t begin = std::string_view::npos;  // of the earliest match
  for (const std::string& stop : stops) begin = std::min(begin, text.find(stop));
  const std::string_view wanted = text.substr(0, begin);

  for (const size_t piece : {size_t{1}, size_t{3}, text.size() + 1}) {
    StopMatcher matcher = *fresh;
    std::string emitted;
    bool matched = false;
    for (size_t at = 0; at < text.size(); at += piece) {
      const auto result = matcher.Push(text.substr(at, piece));
      emitted += result.emit;
      if (!result.matched) continue;
      matched = true;
      FUZZ_CHECK(text.substr(emitted.size()).starts_with(stops[*result.matched]));
    }
    const auto end = matcher.Flush();
    emitted += end.emit;
    FUZZ_CHECK(emitted == wanted);
    FUZZ_CHECK((matched || end.matched) == (begin != std::string_view::npos));
  }
  return 0;
}

}  // namespace baton
