#include "common/tokenizer/pre_tokenizer.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <utility>

#include "common/base/strings.h"

namespace baton {
namespace {

constexpr size_t kJitStackStart = 32 << 10;
constexpr size_t kJitStackMax = 4 << 20;
constexpr uint32_t kMatchLimit = 10'000'000;

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

void PreTokenizer::CodeFree::operator()(pcre2_real_code_8* code) const { pcre2_code_free(code); }

absl::StatusOr<PreTokenizer> PreTokenizer::Create(const std::vector<std::string>& patterns) {
  PreTokenizer result;
  for (const std::string& pattern : patterns) {
    const std::string translated = WithUnicodeSpace(pattern);
    int error = 0;
    PCRE2_SIZE offset = 0;
    Code code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                            PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &error, &offset,
                            nullptr));
    if (code == nullptr) {
      return absl::InvalidArgumentError(Cat("split pattern '", pattern, "': ", PcreMessage(error)));
    }
    // Without JIT support the interpreter does the same, more slowly and on the heap.
    pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE);
    result.steps_.push_back(std::move(code));
  }
  return result;
}

absl::Status PreTokenizer::Split(std::string_view text,
                                 const std::function<absl::Status(std::string_view)>& word) const {
  return SplitFrom(0, text, word);
}

absl::Status PreTokenizer::SplitFrom(
    size_t step, std::string_view text,
    const std::function<absl::Status(std::string_view)>& word) const {
  if (text.empty()) return absl::OkStatus();
  if (step == steps_.size()) return word(text);
  MatchScratch& scratch = ThreadScratch();
  size_t done = 0;   // everything before is handed on
  size_t start = 0;  // where to look for the next match
  while (start < text.size()) {
    const int rc =
        pcre2_match(steps_[step].get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(),
                    start, PCRE2_NO_UTF_CHECK, scratch.data, scratch.context);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      return absl::ResourceExhaustedError(
          Cat("the tokenizer's split pattern gave up on the text: ", PcreMessage(rc)));
    }
    const PCRE2_SIZE* range = pcre2_get_ovector_pointer(scratch.data);
    const size_t begin = range[0];
    const size_t end = range[1];
    if (end <= begin) {  // an empty match splits nothing; step over one character
      start = begin + 1;
      while (start < text.size() && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) ++start;
      continue;
    }
    for (const auto piece : {text.substr(done, begin - done), text.substr(begin, end - begin)}) {
      absl::Status status = SplitFrom(step + 1, piece, word);
      if (!status.ok()) return status;
    }
    done = start = end;
  }
  return SplitFrom(step + 1, text.substr(done), word);
}

}  // namespace baton
