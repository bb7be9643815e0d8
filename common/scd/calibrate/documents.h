// The texts of a calibration: files of UTF-8 as tokens, cut into documents, split into those that
// are learned from and those that judge.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/tokenizer/chat_template.h"
#include "common/tokenizer/tokenizer.h"

namespace baton {

struct Document {
  std::size_t file = 0;  // index into DocumentSet::files
  std::vector<std::int32_t> tokens;
  // Where the last message's text begins, the assistant's, of a conversation; 0: nowhere here.
  std::int32_t answer = 0;
};

struct DocumentSet {
  struct File {
    std::string path;
    std::int64_t documents = 0;
    std::int64_t tokens = 0;  // of those documents
    // Left out: fewer than kMinDocumentTokens, and texts that came before.
    std::int64_t too_short = 0;
    std::int64_t repeated = 0;
  };
  std::vector<File> files;
  std::vector<Document> documents;

  // TokensDigest of all.
  std::string Digest() const;
};

// 32 hex digits over the tokens of these, in their order.
std::string TokensDigest(absl::Span<const Document* const> documents);

inline constexpr std::int32_t kMinDocumentTokens = 64;

// A `.txt` file is one text; a `.jsonl` file has one on each line: in the field "text", or else
// "context", or a conversation in "messages" (a list of {"role", "content"}) that `chat` renders;
// its status, or having none, is an error only where a line needs it. What is longer than
// `max_tokens` is cut into documents, each begun as the tokenizer begins a prompt. Errors name file
// and line: INVALID_ARGUMENT (another kind of file, not JSON, no such field, not UTF-8, nothing in
// it is long enough), or as ReadTextFile and EncodeChat.
absl::StatusOr<DocumentSet> ReadDocuments(absl::Span<const std::string> paths,
                                          const Tokenizer& tokenizer,
                                          const absl::StatusOr<std::optional<ChatTemplate>>& chat,
                                          std::int32_t max_tokens);

// INVALID_ARGUMENT naming the file when an id is no row of an embedding of `vocab` rows.
absl::Status CheckTokens(const DocumentSet& set, std::int64_t vocab);

// What of a document is a prefix that is handed over, and what the consumer runs after it.
struct DocumentCut {
  std::int32_t prefix;
  std::int32_t continuation;  // all of these tokens but the document's last
  // Of the continuation, the tokens whose predictions do not count: those before a conversation's
  // answer, which nobody asks the consumer to predict.
  std::int32_t before_answer;

  std::int32_t predictions() const { return continuation - before_answer; }

  // At most so many tokens of each. A conversation is cut where a node would: the whole blocks
  // before the answer are handed over. Of other texts, and where there is no such block, a shorter
  // one keeps a third to go on.
  DocumentCut(const Document& document, std::int32_t max_prefix, std::int32_t max_continuation);
};

struct DocumentSplit {
  std::vector<const Document*> learned;
  std::vector<const Document*> held_out;
  std::int64_t learned_tokens = 0;
};

// Shuffled by `seed`: the first `held_out` documents, then as many as have `max_tokens` together.
// INVALID_ARGUMENT when not one is left to learn from. Pointers are into `set`.
absl::StatusOr<DocumentSplit> SplitDocuments(const DocumentSet& set, std::int64_t held_out,
                                             std::int64_t max_tokens, std::uint64_t seed);

}  // namespace baton
