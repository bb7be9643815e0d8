#include "common/tokenizer/chat_template.h"

#include <array>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/tokenizer/tokenizer_spec.h"
#include "common/tokenizer/utf8.h"

namespace baton {
namespace {

using Kind = ChatTemplate::Kind;

struct KindInfo {
  Kind kind;
  std::string_view name;
  std::string_view end_of_turn;
};

constexpr std::array<KindInfo, 4> kKinds = {{
    {Kind::kChatMl, "chatml", "<|im_end|>"},
    {Kind::kSmolLm2, "smollm2", "<|im_end|>"},
    {Kind::kLlama3, "llama3", "<|eot_id|>"},
    {Kind::kLlama31, "llama3.1", "<|eot_id|>"},
}};

struct KnownTemplate {
  std::string_view digest;  // XXH3-128 of the normalised text
  Kind kind;
};

// The texts and their renderings by Jinja: tests/data/chat_template.
constexpr std::array<KnownTemplate, 5> kKnown = {{
    {"f0a6a8278439fdb056191e205a440263",
     Kind::kChatMl},  // llama.cpp's and Hugging Face's default ChatML
    {"a344e8c84fb0282dda206a9e46a4ac01",
     Kind::kChatMl},  // with an explicit add_generation_prompt default
    {"98f63cc3d421d28f99ab995e9629dacd", Kind::kSmolLm2},  // SmolLM2-Instruct
    {"09facc0e4aa943189799ad6e2dea0594", Kind::kLlama3},   // Llama-3-Instruct
    {"573e1bcc8c56f178c3d57e38f5ff0756", Kind::kLlama31},  // Llama-3.2-Instruct
}};

constexpr std::string_view kSmolLm2System =
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face";
constexpr std::string_view kLlama31Date = "26 Jul 2024";

// Line ends become \n; outer white space goes.
std::string Normalise(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\r') {
      if (i + 1 == text.size() || text[i + 1] != '\n') out.push_back('\n');
      continue;
    }
    out.push_back(text[i]);
  }
  const size_t begin = out.find_first_not_of(" \t\n");
  if (begin == std::string::npos) return "";
  return out.substr(begin, out.find_last_not_of(" \t\n") - begin + 1);
}

// Joins neighbouring template texts, so that segments alternate.
class SegmentWriter {
 public:
  void Template(std::string_view text) {
    if (segments_.empty() || !segments_.back().is_template) segments_.push_back({"", true});
    segments_.back().text.append(text);
  }
  void Content(std::string_view text) {
    if (!text.empty()) segments_.push_back({std::string(text), false});
  }
  std::vector<ChatSegment> Take() { return std::move(segments_); }

 private:
  std::vector<ChatSegment> segments_;
};

absl::Status CheckMessages(absl::Span<const ChatMessage> messages) {
  if (messages.empty()) return absl::InvalidArgumentError("messages: must not be empty");
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string& role = messages[i].role;
    if (role != "system" && role != "user" && role != "assistant") {
      return absl::InvalidArgumentError(Cat("messages[", i, "].role: '", role.substr(0, 64),
                                            "' is not one of system, user, assistant"));
    }
    if (const auto bad = FirstInvalidUtf8(messages[i].content)) {
      return absl::InvalidArgumentError(
          Cat("messages[", i, "].content: not valid UTF-8 at byte ", *bad));
    }
  }
  return absl::OkStatus();
}

void RenderChatMl(absl::Span<const ChatMessage> messages, bool smollm2, bool generation,
                  SegmentWriter* out) {
  if (smollm2 && messages[0].role != "system") {
    out->Template(Cat("<|im_start|>system\n", kSmolLm2System, "<|im_end|>\n"));
  }
  for (const ChatMessage& message : messages) {
    out->Template(Cat("<|im_start|>", message.role, "\n"));
    out->Content(message.content);
    out->Template("<|im_end|>\n");
  }
  if (generation) out->Template("<|im_start|>assistant\n");
}

void LlamaHeader(std::string_view role, SegmentWriter* out) {
  out->Template(Cat("<|start_header_id|>", role, "<|end_header_id|>\n\n"));
}

void RenderLlama(absl::Span<const ChatMessage> messages, bool dated, const RenderOptions& options,
                 SegmentWriter* out) {
  out->Template("<|begin_of_text|>");
  if (dated) {
    LlamaHeader("system", out);
    out->Template("Cutting Knowledge Date: December 2023\nToday Date: ");
    out->Content(options.date.empty() ? kLlama31Date : options.date);
    out->Template("\n\n");
    if (messages[0].role == "system") {
      out->Content(StripUnicodeSpace(messages[0].content));
      messages.remove_prefix(1);
    }
    out->Template("<|eot_id|>");
  }
  for (const ChatMessage& message : messages) {
    LlamaHeader(message.role, out);
    out->Content(StripUnicodeSpace(message.content));
    out->Template("<|eot_id|>");
  }
  if (options.add_generation_prompt) LlamaHeader("assistant", out);
}

}  // namespace

absl::StatusOr<ChatTemplate> ChatTemplate::Recognise(std::string_view text) {
  const std::string digest = HexDigest(Normalise(text));
  for (const KnownTemplate& known : kKnown) {
    if (known.digest == digest) return ChatTemplate(known.kind);
  }
  return absl::InvalidArgumentError(
      Cat("the model's chat template (XXH3 ", digest,
          ") is not a known one; if its format is one of these, set `chat_template: "
          "chatml|smollm2|llama3|llama3.1` in the model's config"));
}

absl::StatusOr<ChatTemplate> ChatTemplate::ByName(std::string_view name) {
  for (const KindInfo& info : kKinds) {
    if (info.name == name) return ChatTemplate(info.kind);
  }
  return absl::InvalidArgumentError(
      Cat("chat_template: '", name, "' is not one of chatml, smollm2, llama3, llama3.1"));
}

absl::StatusOr<std::vector<ChatSegment>> ChatTemplate::Render(
    absl::Span<const ChatMessage> messages, const RenderOptions& options) const {
  BATON_RETURN_IF_ERROR(CheckMessages(messages));
  SegmentWriter out;
  switch (kind_) {
    case Kind::kChatMl:
    case Kind::kSmolLm2:
      RenderChatMl(messages, kind_ == Kind::kSmolLm2, options.add_generation_prompt, &out);
      break;
    case Kind::kLlama3:
    case Kind::kLlama31:
      RenderLlama(messages, kind_ == Kind::kLlama31, options, &out);
      break;
  }
  return out.Take();
}

std::string_view ChatTemplate::name() const { return kKinds[static_cast<size_t>(kind_)].name; }

std::string_view ChatTemplate::end_of_turn() const {
  return kKinds[static_cast<size_t>(kind_)].end_of_turn;
}

absl::StatusOr<std::vector<int32_t>> EncodeChat(const Tokenizer& tokenizer,
                                                const ChatTemplate& chat,
                                                absl::Span<const ChatMessage> messages,
                                                const RenderOptions& options) {
  BATON_ASSIGN_OR_RETURN(const auto segments, chat.Render(messages, options));
  std::vector<TextPiece> pieces;
  pieces.reserve(segments.size());
  for (const ChatSegment& segment : segments) pieces.push_back({segment.text, segment.is_template});
  BATON_ASSIGN_OR_RETURN(std::vector<int32_t> ids, tokenizer.EncodePieces(pieces));
  // The Llama kinds write BOS themselves; the others leave it to the tokenizer's rule. Their
  // opening <|im_start|> may be the BOS id without being a BOS.
  const bool template_has_bos =
      chat.kind() == ChatTemplate::Kind::kLlama3 || chat.kind() == ChatTemplate::Kind::kLlama31;
  if (template_has_bos) {
    if (ids.empty() || !tokenizer.IsSpecial(ids[0])) {
      return absl::InvalidArgumentError(
          Cat("chat_template: '", chat.name(),
              "' needs the token <|begin_of_text|>, which the vocabulary lacks"));
    }
  } else if (tokenizer.adds_bos()) {
    ids.insert(ids.begin(), *tokenizer.bos_id());
  }
  // A template written for another vocabulary would turn its markers into ordinary text.
  const auto end = tokenizer.TokenToId(chat.end_of_turn());
  if (!end.has_value() || !tokenizer.IsSpecial(*end)) {
    return absl::InvalidArgumentError(Cat("chat_template: '", chat.name(),
                                          "' needs the special token ", chat.end_of_turn(),
                                          ", which the vocabulary lacks"));
  }
  return ids;
}

}  // namespace baton
