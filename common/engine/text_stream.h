// One sequence's tokens as text: whole characters, cut at a stop string.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "common/tokenizer/detokenizer.h"
#include "common/tokenizer/stop_matcher.h"
#include "common/tokenizer/tokenizer.h"

namespace baton {

class TextStream {
 public:
  struct Piece {
    std::string text;                    // certain now
    std::optional<std::size_t> stopped;  // index of the stop string found
  };

  // `tokenizer` may be null (no text) and must outlive this. The first `unwatched` tokens are not
  // searched for stop strings. `continues_text` as in DecodeOptions.
  TextStream(const Tokenizer* tokenizer, StopMatcher matcher, std::int64_t unwatched,
             bool continues_text = false)
      : matcher_(std::move(matcher)), unwatched_(unwatched) {
    if (tokenizer != nullptr)
      detokenizer_.emplace(*tokenizer, /*skip_special=*/true, continues_text);
  }

  Piece Push(std::int32_t token) {
    Piece piece;
    if (detokenizer_) piece = Match(detokenizer_->Push(token));
    ++pushed_;
    return piece;
  }

  // The end: what was held back, cut at a stop string if there is one in it.
  Piece Finish() {
    Piece piece;
    if (!detokenizer_) return piece;
    piece = Match(detokenizer_->Flush());
    if (piece.stopped) return piece;
    StopMatcher::Result rest = matcher_.Flush();
    piece.text += rest.emit;
    piece.stopped = rest.matched;
    return piece;
  }

 private:
  Piece Match(std::string text) {
    if (pushed_ < unwatched_) return {std::move(text), std::nullopt};
    StopMatcher::Result result = matcher_.Push(text);
    return {std::move(result.emit), result.matched};
  }

  std::optional<Detokenizer> detokenizer_;
  StopMatcher matcher_;
  std::int64_t unwatched_;
  std::int64_t pushed_ = 0;
};

}  // namespace baton
