#include "common/tokenizer/tool_calls.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>
#include <utility>

#include "common/base/ids.h"
#include "common/tokenizer/template_json.h"

namespace baton {
namespace {

constexpr std::string_view kOpen = "<tool_call>";
constexpr std::string_view kClose = "</tool_call>";
constexpr std::string_view kSpace = " \t\r\n";

std::string_view Strip(std::string_view text) {
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == std::string_view::npos) return "";
  return text.substr(begin, text.find_last_not_of(kSpace) - begin + 1);
}

// 9 letters and digits: what Mistral's template takes back.
std::string NewCallId() {
  constexpr std::string_view kAlphabet = "abcdefghijklmnopqrstuvwxyz0123456789";
  std::string id;
  uint64_t bits = RandomId64();
  for (int i = 0; i < 9; ++i, bits /= kAlphabet.size()) id += kAlphabet[bits % kAlphabet.size()];
  return id;
}

std::optional<ChatToolCall> ToCall(const TemplateJson& json, std::string_view arguments_key) {
  const TemplateJson* name = json.Find("name");
  const TemplateJson* arguments = json.Find(arguments_key);
  if (name == nullptr || name->type() != TemplateJson::Type::kString || name->text().empty() ||
      arguments == nullptr || !arguments->is_object()) {
    return std::nullopt;
  }
  auto text = arguments->Dump(kMaxEncodeBytes);
  if (!text.ok()) return std::nullopt;
  return ChatToolCall{NewCallId(), name->text(), *std::move(text)};
}

}  // namespace

ToolCallReader::ToolCallReader(const ChatTemplate& chat, absl::Span<const std::string> tools) {
  if (!chat.has_tools() || tools.empty()) return;
  switch (chat.kind()) {
    case ChatTemplate::Kind::kLlama31:
      format_ = Format::kParameters;
      break;
    case ChatTemplate::Kind::kMistralV3:
      format_ = Format::kList;
      break;
    default:
      format_ = Format::kTagged;
  }
  for (const std::string& text : tools) {
    const auto tool = TemplateJson::Parse(text);
    const TemplateJson* function = tool.ok() ? tool->Find("function") : nullptr;
    const TemplateJson* name = function != nullptr ? function->Find("name") : nullptr;
    if (name != nullptr) names_.insert(name->text());
  }
}

std::string ToolCallReader::Push(std::string_view text) {
  if (format_ == Format::kNone || plain_) return std::string(text);
  held_.append(text);
  if (format_ == Format::kTagged) return PushTagged();
  const size_t first = held_.find_first_not_of(kSpace);
  if (first == std::string::npos || held_[first] == (format_ == Format::kList ? '[' : '{')) {
    return "";
  }
  plain_ = true;
  return std::exchange(held_, "");
}

std::string ToolCallReader::PushTagged() {
  // Held back from the first tag on, or from what may become one; the line end before a tag
  // belongs to it.
  size_t keep = held_.find(kOpen);
  if (keep == std::string::npos) {
    size_t tail = std::min(held_.size(), kOpen.size() - 1);
    while (tail > 0 && !kOpen.starts_with(std::string_view(held_).substr(held_.size() - tail))) {
      --tail;
    }
    keep = held_.size() - tail;
  }
  if (keep > 0 && held_[keep - 1] == '\n') --keep;
  std::string out = held_.substr(0, keep);
  held_.erase(0, keep);
  return out;
}

bool ToolCallReader::ReadTagged(std::vector<ChatToolCall>* calls) const {
  std::string_view rest = Strip(held_);
  while (!rest.empty()) {
    if (!rest.starts_with(kOpen)) return false;
    const size_t close = rest.find(kClose);
    if (close == std::string_view::npos) return false;
    const auto json = TemplateJson::Parse(rest.substr(kOpen.size(), close - kOpen.size()));
    auto call = json.ok() ? ToCall(*json, "arguments") : std::nullopt;
    if (!call) return false;
    calls->push_back(*std::move(call));
    rest = Strip(rest.substr(close + kClose.size()));
  }
  return true;
}

bool ToolCallReader::ReadWhole(std::vector<ChatToolCall>* calls) const {
  const auto json = TemplateJson::Parse(Strip(held_));
  if (!json.ok()) return false;
  const bool list = format_ == Format::kList;
  // JSON may also be what the user asked for: only a call of a tool that was offered is one.
  const auto read = [&](const TemplateJson& item) {
    auto call = ToCall(item, list ? "arguments" : "parameters");
    if (!call || !names_.contains(call->name)) return false;
    calls->push_back(*std::move(call));
    return true;
  };
  if (!list) return read(*json);
  return std::all_of(json->items().begin(), json->items().end(), read);
}

ToolCallReader::Reply ToolCallReader::Finish() {
  Reply reply;
  if (held_.empty()) return reply;
  const bool read = format_ == Format::kTagged ? ReadTagged(&reply.calls) : ReadWhole(&reply.calls);
  if (!read || reply.calls.empty()) {
    reply.calls.clear();
    reply.text = std::exchange(held_, "");
  }
  return reply;
}

}  // namespace baton
