#include "common/tokenizer/pattern.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/tokenizer/utf8.h"

namespace baton {
namespace {

constexpr size_t kJitStackStart = 32 << 10;
constexpr size_t kJitStackMax = 4 << 20;
constexpr uint32_t kMatchLimit = 10'000'000;
constexpr uint32_t kHeapLimitKib = 64 << 10;

// PCRE2's \s holds U+180E, which Unicode moved out of White_Space in 2013 and `tokenizers` does not
// treat as space; so the class is spelled out.
std::string WithUnicodeSpace(std::string_view pattern) {
  constexpr std::string_view kSpace = "\\t-\\r\\x{85}\\p{Z}";
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char next = pattern[++i];
      if (next == 's') {
        out += in_class ? Cat(kSpace) : Cat("[", kSpace, "]");
      } else if (next == 'S' && !in_class) {
        out += Cat("[^", kSpace, "]");
      } else {
        out.push_back(c);
        out.push_back(next);
      }
      continue;
    }
    if (c == '[') in_class = true;
    if (c == ']') in_class = false;
    out.push_back(c);
  }
  return out;
}

// \K lets a match begin where the one before it has been already.
bool MovesItsStart(std::string_view pattern) {
  for (size_t i = 0; i + 1 < pattern.size(); ++i) {
    if (pattern[i] == '\\' && pattern[++i] == 'K') return true;
  }
  return false;
}

std::string PcreMessage(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof(buffer));
  return reinterpret_cast<const char*>(buffer);
}

// Scratch memory of matching, one per thread: making it costs more than matching a short text.
struct MatchScratch {
  pcre2_match_data* data = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr);

  MatchScratch() {
    pcre2_set_match_limit(context, kMatchLimit);
    pcre2_set_heap_limit(context, kHeapLimitKib);
    pcre2_jit_stack_assign(context, nullptr, stack);
  }
  ~MatchScratch() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(data);
  }
  MatchScratch(const MatchScratch&) = delete;
  MatchScratch& operator=(const MatchScratch&) = delete;
};

MatchScratch& ThreadScratch() {
  thread_local MatchScratch scratch;
  return scratch;
}

}  // namespace

void Pattern::CodeFree::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

absl::StatusOr<Pattern> Pattern::Create(std::string_view pattern) {
  if (MovesItsStart(pattern)) {
    return absl::InvalidArgumentError(Cat("pattern '", pattern, "': \\K is not supported"));
  }
  const std::string translated = WithUnicodeSpace(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  Pattern result;
  result.code_.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                    PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset, nullptr));
  if (result.code_ == nullptr) {
    return absl::InvalidArgumentError(Cat("pattern '", pattern, "': ", PcreMessage(error)));
  }
  // Without JIT support the interpreter does the same, more slowly and on the heap.
  pcre2_jit_compile(result.code_.get(), PCRE2_JIT_COMPLETE);
  return result;
}

absl::StatusOr<std::optional<Pattern::Range>> Pattern::Find(std::string_view text,
                                                            size_t start) const {
  MatchScratch& scratch = ThreadScratch();
  const int rc = pcre2_match(code_.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                             start, PCRE2_NO_UTF_CHECK, scratch.data, scratch.context);
  if (rc == PCRE2_ERROR_NOMATCH) return std::optional<Range>();
  if (rc < 0) {
    return absl::ResourceExhaustedError(
        Cat("the tokenizer's split pattern gave up on the text: ", PcreMessage(rc)));
  }
  const PCRE2_SIZE* range = pcre2_get_ovector_pointer(scratch.data);
  if (range[0] < start || range[1] < range[0]) {
    return absl::ResourceExhaustedError("the tokenizer's split pattern matches backwards");
  }
  return std::optional<Range>({range[0], range[1]});
}

std::string Pattern::Literal(std::string_view text) {
  std::string out;
  for (char c : text) {
    const bool symbol = static_cast<uint8_t>(c) > ' ' && static_cast<uint8_t>(c) < 0x7F &&
                        !(c >= '0' && c <= '9') && !(c >= 'A' && c <= 'Z') &&
                        !(c >= 'a' && c <= 'z') && c != '_';
    if (symbol) out.push_back('\\');
    out.push_back(c);
  }
  return out;
}

absl::StatusOr<std::optional<Pattern::Range>> PatternMatches::Next() {
  while (start_ <= text_.size()) {
    BATON_ASSIGN_OR_RETURN(const auto match, pattern_.Find(text_, start_));
    if (!match.has_value()) break;
    if (match->begin >= match->end && last_end_ == match->end) {
      start_ += start_ < text_.size() ? Utf8CharLength(text_.substr(start_)) : 1;
      continue;
    }
    start_ = match->end;
    last_end_ = match->end;
    return match;
  }
  start_ = text_.size() + 1;
  return std::optional<Pattern::Range>();
}

}  // namespace baton
