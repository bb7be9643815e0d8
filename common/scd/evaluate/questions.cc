#include "common/scd/evaluate/questions.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/scd/evaluate/answer_score.h"
#include "common/weights/digest.h"
#include "common/weights/mapped_file.h"
#include "nlohmann/json.hpp"

namespace baton {
namespace {

constexpr std::size_t kMaxQuestionBytes = std::size_t{1} << 30;

absl::Status BadQuestion(const std::string& what) { return absl::InvalidArgumentError(what); }

// A line as it is written.
struct Row {
  std::string context;
  std::string question;
  Question scored;
};

absl::StatusOr<std::string> TextField(const nlohmann::json& row, const char* field) {
  const auto it = row.find(field);
  if (it == row.end()) return BadQuestion(Cat("no \"", field, "\""));
  if (!it->is_string()) return BadQuestion(Cat("\"", field, "\" is not a string"));
  return it->get<std::string>();
}

absl::Status ReadReferences(const nlohmann::json& row, Question& question) {
  for (const char* field : {"references", "answers"}) {
    const auto it = row.find(field);
    if (it == row.end()) continue;
    if (!it->is_array() || it->empty()) {
      return BadQuestion(Cat("\"", field, "\" is not a list of strings"));
    }
    for (const nlohmann::json& reference : *it) {
      if (!reference.is_string()) {
        return BadQuestion(Cat("\"", field, "\" is not a list of strings"));
      }
      question.references.push_back(reference.get<std::string>());
    }
    break;
  }
  if (row.contains("answer")) {
    BATON_ASSIGN_OR_RETURN(question.answer, TextField(row, "answer"));
    if (question.references.empty()) question.references.push_back(question.answer);
  } else if (!question.references.empty()) {
    question.answer = question.references[0];
  } else {
    return BadQuestion("neither \"answer\" nor \"references\"");
  }
  return absl::OkStatus();
}

absl::StatusOr<Row> ParseRow(std::string_view line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return BadQuestion("not a JSON object");
  Row row;
  BATON_ASSIGN_OR_RETURN(const std::string context, TextField(json, "context"));
  BATON_ASSIGN_OR_RETURN(const std::string question, TextField(json, "question"));
  row.context = std::string(StripSpace(context));
  row.question = std::string(StripSpace(question));
  BATON_RETURN_IF_ERROR(ReadReferences(json, row.scored));
  row.scored.answer = std::string(StripSpace(row.scored.answer));
  row.scored.skill = "all";
  if (json.contains("skill")) {
    BATON_ASSIGN_OR_RETURN(row.scored.skill, TextField(json, "skill"));
  }
  if (const auto it = json.find("exact"); it != json.end()) {
    if (!it->is_boolean()) return BadQuestion("\"exact\" is neither true nor false");
    row.scored.exact = it->get<bool>();
  }
  return row;
}

using Ids = std::vector<std::int32_t>;

// The whole prompt, and how many of its tokens are those of the context alone.
struct Prompt {
  Ids tokens;
  std::size_t prefix = 0;
};

std::size_t CommonPrefix(const Ids& a, const Ids& b) {
  return static_cast<std::size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first -
                                  a.begin());
}

class QuestionReader {
 public:
  QuestionReader(const Tokenizer& tokenizer, const AnswerForm& form, std::int32_t min_prefix,
                 std::int32_t max_tokens)
      : tokenizer_(tokenizer), form_(form), min_prefix_(min_prefix), max_tokens_(max_tokens) {}

  absl::Status Add(std::string_view line, QuestionSet& set) {
    BATON_ASSIGN_OR_RETURN(Row row, ParseRow(line));
    BATON_ASSIGN_OR_RETURN(Prompt prompt, Encode(row));
    Question& question = row.scored;
    BATON_ASSIGN_OR_RETURN(question.answer_tokens, tokenizer_.Encode(question.answer));
    BATON_RETURN_IF_ERROR(AddEnd(question.answer_tokens));
    const std::size_t total = prompt.tokens.size() + question.answer_tokens.size();
    if (prompt.prefix < static_cast<std::size_t>(min_prefix_) ||
        total > static_cast<std::size_t>(max_tokens_)) {
      ++set.left_out;
      return absl::OkStatus();
    }
    const bool same = !set.groups.empty() && row.context == context_;
    if (!same) {
      context_ = row.context;
      set.groups.push_back({.prefix = Ids(prompt.tokens.cbegin(), At(prompt.tokens, prompt.prefix)),
                            .questions = {}});
    }
    QuestionGroup& group = set.groups.back();
    // A tokenizer may join the end of a context with what follows it.
    const std::size_t shared = CommonPrefix(prompt.tokens, group.prefix);
    for (Question& earlier : group.questions) {
      earlier.suffix.insert(earlier.suffix.begin(), At(group.prefix, shared), group.prefix.cend());
    }
    group.prefix.resize(shared);
    question.suffix = Ids(At(prompt.tokens, shared), prompt.tokens.cend());
    group.questions.push_back(std::move(question));
    ++set.questions;
    return absl::OkStatus();
  }

 private:
  static Ids::const_iterator At(const Ids& ids, std::size_t i) {
    return ids.begin() + static_cast<std::ptrdiff_t>(i);
  }

  absl::StatusOr<Prompt> Encode(const Row& row) const {
    const std::string content = row.context + "\n\n" + row.question;
    Prompt prompt;
    std::vector<TextPiece> pieces;  // up to the end of the context
    std::vector<ChatSegment> segments;
    if (!form_.chat) {
      BATON_ASSIGN_OR_RETURN(prompt.tokens, tokenizer_.Encode(content + "\n", {.add_bos = true}));
      pieces.push_back({.text = row.context, .literal = true});
    } else {
      const ChatMessage message{.role = "user", .content = content};
      BATON_ASSIGN_OR_RETURN(prompt.tokens, EncodeChat(tokenizer_, *form_.chat, {&message, 1}));
      BATON_ASSIGN_OR_RETURN(segments, form_.chat->Render({&message, 1}));
      for (const ChatSegment& segment : segments) {
        const std::size_t at =
            segment.is_template ? std::string::npos : segment.text.find(row.context);
        std::string_view text = segment.text;
        if (at != std::string::npos) text = text.substr(0, at + row.context.size());
        pieces.push_back(
            {.text = text, .parse_special = segment.is_template, .literal = !segment.is_template});
        if (at != std::string::npos) break;
      }
    }
    BATON_ASSIGN_OR_RETURN(Ids alone, tokenizer_.EncodePieces(pieces));
    // A BOS that the tokenizer's rule puts first is not in the pieces.
    if (tokenizer_.adds_bos() && !prompt.tokens.empty() &&
        prompt.tokens[0] == *tokenizer_.bos_id() &&
        (alone.empty() || alone[0] != *tokenizer_.bos_id())) {
      alone.insert(alone.begin(), prompt.tokens[0]);
    }
    prompt.prefix = CommonPrefix(alone, prompt.tokens);
    return prompt;
  }

  absl::Status AddEnd(Ids& answer) const {
    if (!form_.end.empty()) {
      answer.push_back(form_.end[0]);
      return absl::OkStatus();
    }
    BATON_ASSIGN_OR_RETURN(const Ids line, tokenizer_.Encode("\n"));
    answer.insert(answer.end(), line.begin(), line.end());
    return absl::OkStatus();
  }

  const Tokenizer& tokenizer_;
  const AnswerForm& form_;
  const std::int32_t min_prefix_;
  const std::int32_t max_tokens_;
  std::string context_;  // of the last group
};

std::string_view BytesOf(const Ids& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(std::int32_t)};
}

}  // namespace

std::string QuestionSet::Digest() const {
  PartDigest digest;
  for (const QuestionGroup& group : groups) {
    digest.Add(BytesOf(group.prefix));
    for (const Question& q : group.questions) {
      digest.Add(BytesOf(q.suffix));
      digest.Add(BytesOf(q.answer_tokens));
      for (const std::string& reference : q.references) digest.Add(reference);
    }
  }
  return digest.Hex();
}

absl::StatusOr<QuestionSet> ReadQuestions(const std::string& path, const Tokenizer& tokenizer,
                                          const AnswerForm& form, std::int32_t min_prefix,
                                          std::int32_t max_tokens) {
  if (!path.ends_with(".jsonl")) return BadQuestion(Cat(path, ": not a .jsonl file"));
  BATON_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path, kMaxQuestionBytes));
  QuestionSet set;
  set.path = path;
  QuestionReader reader(tokenizer, form, min_prefix, max_tokens);
  std::string_view rest = text;
  for (int number = 1; !rest.empty(); ++number) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    if (absl::Status status = reader.Add(line, set); !status.ok()) {
      return absl::Status(status.code(), Cat(path, ":", number, ": ", StdView(status.message())));
    }
  }
  if (set.questions == 0) {
    return BadQuestion(Cat(path, ": no question with ", min_prefix, " tokens of context and ",
                           max_tokens, " in all; ", set.left_out, " are left out"));
  }
  return set;
}

}  // namespace baton
