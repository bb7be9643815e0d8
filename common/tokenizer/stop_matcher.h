// Finds stop strings in streamed text and holds back whatever could still become one.
//
//   BATON_ASSIGN_OR_RETURN(StopMatcher matcher, StopMatcher::Create({"\n\n", "END"}));
//   StopMatcher::Result r = matcher.Push(delta);
//   send(r.emit); if (r.matched) finish();
//   ... at the end without a match: send(matcher.Flush().emit);
//
// Bytes in, bytes out: with whole characters pushed and valid UTF-8 stop strings, whole characters
// come out. Work per byte is constant on average, whatever the number of stop strings
// (Aho-Corasick). One stream per object; not thread-safe; copy a fresh one per stream.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

class StopMatcher {
 public:
  struct Result {
    std::string emit;  // text that is certain now
    std::optional<size_t>
        matched;  // index of the stop string found; the text before it was emitted
  };

  // No stop strings: everything is emitted at once. Errors: InvalidArgument naming "stop[i]" for an
  // empty string or one over kMaxStopBytes, or for more than kMaxStops strings.
  static absl::StatusOr<StopMatcher> Create(std::vector<std::string> stops);

  static constexpr size_t kMaxStops = 64;
  static constexpr size_t kMaxStopBytes = 1024;

  StopMatcher() = default;

  // The match that begins earliest wins (of two that begin together, the shorter). After a match
  // the rest is dropped and further pushes return nothing.
  Result Push(std::string_view text);

  // Ends the stream: the text that was held back, up to a stop string that was complete but might
  // have lost to one that begins earlier. Nothing after a match.
  Result Flush();

 private:
  struct Automaton;
  void Step(uint8_t byte);

  std::shared_ptr<const Automaton> automaton_;  // null without stop strings
  std::string held_;                            // text not yet emitted
  uint32_t state_ = 0;  // its length in the automaton says how much of held_ could match
  bool done_ = false;
  // Best complete match so far, waiting until none that begins earlier is possible.
  std::optional<size_t> found_;
  size_t found_begin_ = 0;  // offset into held_
};

}  // namespace baton
