#include "common/scd/calibrate/documents.h"

#include <algorithm>
#include <optional>
#include <random>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/base/utf8.h"
#include "common/scd/code_cut.h"
#include "common/weights/digest.h"
#include "common/weights/mapped_file.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

constexpr std::size_t kMaxFileBytes = std::size_t{1} << 30;
// A text is tokenised in pieces: an encoder takes no more than kMaxEncodeBytes at once.
constexpr std::size_t kPieceBytes = std::size_t{1} << 20;

absl::Status BadText(const std::string& what) { return absl::InvalidArgumentError(what); }

absl::Status At(const std::string& where, const absl::Status& status) {
  return absl::Status(status.code(), Cat(where, ": ", StdView(status.message())));
}

// The start of `text` to encode next: to the end of a line where there is one in reach.
std::string_view NextPiece(std::string_view text) {
  if (text.size() <= kPieceBytes) return text;
  const std::size_t newline = text.rfind('\n', kPieceBytes - 1);
  if (newline != std::string_view::npos && newline > 0) return text.substr(0, newline + 1);
  std::size_t end = kPieceBytes;
  // Not through a character.
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80) --end;
  return text.substr(0, end);
}

absl::StatusOr<std::vector<std::int32_t>> Encode(const Tokenizer& tokenizer,
                                                 std::string_view text) {
  if (!IsValidUtf8(text)) return BadText("is not valid UTF-8");
  std::vector<std::int32_t> ids;
  while (!text.empty()) {
    const std::string_view piece = NextPiece(text);
    BATON_ASSIGN_OR_RETURN(const std::vector<std::int32_t> more, tokenizer.Encode(piece));
    ids.insert(ids.end(), more.begin(), more.end());
    text.remove_prefix(piece.size());
  }
  return ids;
}

absl::StatusOr<std::string> MessageField(const nlohmann::json& message, std::size_t i,
                                         const char* field) {
  const auto it = message.is_object() ? message.find(field) : message.end();
  if (!message.is_object() || it == message.end() || !it->is_string()) {
    return BadText(Cat("\"messages\"[", i, "]: no string \"", field, "\""));
  }
  return it->get<std::string>();
}

absl::StatusOr<std::vector<ChatMessage>> ReadMessages(const nlohmann::json& list) {
  if (!list.is_array()) return BadText("\"messages\" is not a list");
  std::vector<ChatMessage> messages;
  for (std::size_t i = 0; i < list.size(); ++i) {
    ChatMessage& message = messages.emplace_back();
    BATON_ASSIGN_OR_RETURN(message.role, MessageField(list[i], i, "role"));
    BATON_ASSIGN_OR_RETURN(message.content, MessageField(list[i], i, "content"));
  }
  return messages;
}

class Reader {
 public:
  Reader(const Tokenizer& tokenizer, const absl::StatusOr<std::optional<ChatTemplate>>& chat,
         std::int32_t max_tokens)
      : tokenizer_(tokenizer), chat_(chat), max_tokens_(max_tokens) {
    if (tokenizer.adds_bos()) begin_ = tokenizer.bos_id();
  }

  absl::Status Read(const std::string& path) {
    const bool lines = path.ends_with(".jsonl");
    if (!lines && !path.ends_with(".txt")) {
      return BadText(Cat(path, ": neither .txt nor .jsonl"));
    }
    const absl::StatusOr<std::string> text = ReadTextFile(path, kMaxFileBytes);
    if (!text.ok()) return text.status();
    set_.files.push_back({.path = path});
    if (lines) {
      BATON_RETURN_IF_ERROR(ReadLines(path, *text));
    } else if (absl::Status s = AddText(*text); !s.ok()) {
      return At(path, s);
    }
    if (set_.files.back().documents == 0) {
      return BadText(Cat(path, ": no text of at least ", kMinDocumentTokens, " tokens"));
    }
    return absl::OkStatus();
  }

  DocumentSet Finish() && { return std::move(set_); }

 private:
  absl::Status ReadLines(const std::string& path, std::string_view text) {
    for (int number = 1; !text.empty(); ++number) {
      const std::string_view line = text.substr(0, text.find('\n'));
      text.remove_prefix(std::min(text.size(), line.size() + 1));
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      absl::Status status = AddLine(line);
      if (!status.ok()) return At(Cat(path, ":", number), status);
    }
    return absl::OkStatus();
  }

  absl::Status AddLine(std::string_view line) {
    const auto row = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (!row.is_object()) return BadText("not a JSON object");
    for (const char* field : {"text", "context"}) {
      const auto it = row.find(field);
      if (it == row.end()) continue;
      if (!it->is_string()) return BadText(Cat("\"", field, "\" is not a string"));
      return AddText(it->get_ref<const std::string&>());
    }
    if (const auto it = row.find("messages"); it != row.end()) return AddConversation(*it);
    return BadText("neither \"text\", \"context\" nor \"messages\"");
  }

  absl::Status AddText(std::string_view text) {
    if (!IsNew(text)) return absl::OkStatus();
    BATON_ASSIGN_OR_RETURN(const std::vector<std::int32_t> ids, Encode(tokenizer_, text));
    AddTokens(ids);
    return absl::OkStatus();
  }

  absl::Status AddConversation(const nlohmann::json& list) {
    BATON_ASSIGN_OR_RETURN(const std::vector<ChatMessage> messages, ReadMessages(list));
    if (!chat_.ok()) return chat_.status();
    if (!*chat_) return BadText("\"messages\", and there is no chat template to render them");
    if (!IsNew(list.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace))) {
      return absl::OkStatus();
    }
    BATON_ASSIGN_OR_RETURN(
        std::vector<std::int32_t> ids,
        EncodeChat(tokenizer_, **chat_, messages, {.add_generation_prompt = false}));
    BATON_ASSIGN_OR_RETURN(std::size_t answer, FindAnswer(messages, ids));
    if (begin_ && !ids.empty() && ids.front() == *begin_) {
      ids.erase(ids.begin());
      answer -= std::min<std::size_t>(answer, 1);
    }
    AddTokens(ids, answer);
    return absl::OkStatus();
  }

  // How many of `ids` a server would be asked with; 0 where the last message is no reply, or where
  // the template puts one otherwise than it asks for it.
  absl::StatusOr<std::size_t> FindAnswer(absl::Span<const ChatMessage> messages,
                                         const std::vector<std::int32_t>& ids) const {
    if (messages.size() < 2 || messages.back().role != "assistant") return 0;
    BATON_ASSIGN_OR_RETURN(const std::vector<std::int32_t> asked,
                           EncodeChat(tokenizer_, **chat_, messages.first(messages.size() - 1)));
    const bool begins =
        asked.size() < ids.size() && std::equal(asked.begin(), asked.end(), ids.begin());
    return begins ? asked.size() : 0;
  }

  // What is learned must not be what judges.
  bool IsNew(std::string_view text) {
    if (seen_.insert(Xxh3Hex(text.data(), text.size())).second) return true;
    ++set_.files.back().repeated;
    return false;
  }

  void AddTokens(absl::Span<const std::int32_t> ids, std::size_t answer = 0) {
    const std::size_t begin = begin_ ? 1 : 0;
    const std::size_t most = static_cast<std::size_t>(max_tokens_) - begin;
    DocumentSet::File& file = set_.files.back();
    for (std::size_t at = 0; at < ids.size(); at += most) {
      Document document{.file = set_.files.size() - 1};
      if (begin_) document.tokens.push_back(*begin_);
      const std::size_t end = std::min(ids.size(), at + most);
      document.tokens.insert(document.tokens.end(), ids.begin() + static_cast<std::ptrdiff_t>(at),
                             ids.begin() + static_cast<std::ptrdiff_t>(end));
      const auto tokens = static_cast<std::int64_t>(document.tokens.size());
      if (tokens < kMinDocumentTokens) {
        ++file.too_short;
        continue;
      }
      ++file.documents;
      file.tokens += tokens;
      if (answer > at && answer < end) {
        document.answer = static_cast<std::int32_t>(begin + answer - at);
      }
      set_.documents.push_back(std::move(document));
    }
  }

  const Tokenizer& tokenizer_;
  const absl::StatusOr<std::optional<ChatTemplate>>& chat_;
  const std::int32_t max_tokens_;
  std::optional<std::int32_t> begin_;
  std::unordered_set<std::string> seen_;  // digests of texts
  DocumentSet set_;
};

}  // namespace

std::string TokensDigest(absl::Span<const Document* const> documents) {
  PartDigest digest;
  for (const Document* d : documents) {
    digest.Add({reinterpret_cast<const char*>(d->tokens.data()),
                d->tokens.size() * sizeof(d->tokens.front())});
  }
  return digest.Hex();
}

std::string DocumentSet::Digest() const {
  std::vector<const Document*> all;
  for (const Document& d : documents) all.push_back(&d);
  return TokensDigest(all);
}

absl::StatusOr<DocumentSet> ReadDocuments(absl::Span<const std::string> paths,
                                          const Tokenizer& tokenizer,
                                          const absl::StatusOr<std::optional<ChatTemplate>>& chat,
                                          std::int32_t max_tokens) {
  if (max_tokens < kMinDocumentTokens) {
    return BadText(Cat("documents of ", max_tokens, " tokens; at least ", kMinDocumentTokens));
  }
  Reader reader(tokenizer, chat, max_tokens);
  for (const std::string& path : paths) BATON_RETURN_IF_ERROR(reader.Read(path));
  return std::move(reader).Finish();
}

absl::Status CheckTokens(const DocumentSet& set, std::int64_t vocab) {
  for (const Document& d : set.documents) {
    for (const std::int32_t id : d.tokens) {
      if (id < 0 || id >= vocab) {
        return absl::InvalidArgumentError(
            Cat(set.files[d.file].path, ": token ", id, "; the smallest vocabulary has ", vocab));
      }
    }
  }
  return absl::OkStatus();
}

DocumentCut::DocumentCut(const Document& document, std::int32_t max_prefix,
                         std::int32_t max_continuation) {
  const auto n = static_cast<std::int32_t>(document.tokens.size());
  const std::int32_t blocks = (document.answer - 1) / kCodeBlockRows * kCodeBlockRows;
  prefix =
      std::min(max_prefix,
               document.answer > 0 && blocks > 0 ? blocks : n - std::min(max_continuation, n / 3));
  continuation = std::min(max_continuation, n - prefix) - 1;
  // The answer's first token is predicted by the one before it.
  before_answer = std::max(0, document.answer - 1 - prefix);
  if (before_answer >= continuation) before_answer = 0;
}

absl::StatusOr<DocumentSplit> SplitDocuments(const DocumentSet& set, std::int64_t held_out,
                                             std::int64_t max_tokens, std::uint64_t seed) {
  std::vector<const Document*> order;
  for (const Document& d : set.documents) order.push_back(&d);
  std::mt19937_64 random(seed);
  // Not std::shuffle, whose order differs between libraries.
  for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[random() % i]);
  DocumentSplit split;
  for (const Document* d : order) {
    if (static_cast<std::int64_t>(split.held_out.size()) < held_out) {
      split.held_out.push_back(d);
    } else if (const auto n = static_cast<std::int64_t>(d->tokens.size());
               split.learned_tokens + n <= max_tokens || split.learned.empty()) {
      split.learned.push_back(d);
      split.learned_tokens += n;
    }
  }
  if (split.learned.empty()) {
    return BadText(Cat(set.documents.size(), " documents, ", held_out,
                       " of them held out: none is left to learn from"));
  }
  return split;
}

}  // namespace baton
