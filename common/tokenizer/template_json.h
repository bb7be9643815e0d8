// JSON that goes into a prompt, written as Hugging Face's `tojson` writes it.
//
// Keys keep their order and numbers their value, as in Python: a model was trained on exactly that
// text. Input is untrusted and bounded.
//
//   BATON_ASSIGN_OR_RETURN(const TemplateJson tool, TemplateJson::Parse(text));
//   BATON_ASSIGN_OR_RETURN(std::string line, tool.Dump(limit));
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

namespace baton {

// Deepest nesting of objects and arrays.
inline constexpr int kMaxTemplateJsonDepth = 64;

class TemplateJson {
 public:
  enum class Type { kNull, kBool, kNumber, kString, kArray, kObject };
  using Member = std::pair<std::string, TemplateJson>;

  TemplateJson() = default;

  // Errors: InvalidArgument for what is not JSON (also not UTF-8, a number beyond a double) or is
  // nested deeper than kMaxTemplateJsonDepth. Of equal keys the last value counts, at the place of
  // the first.
  static absl::StatusOr<TemplateJson> Parse(std::string_view text);

  // json.dumps(value, ensure_ascii=False, indent=indent); `indent` 0: on one line.
  // Errors: ResourceExhausted when the text would be longer than `limit` bytes.
  absl::StatusOr<std::string> Dump(size_t limit, int indent = 0) const;

  // json.dumps(text, ensure_ascii=False) of a string.
  static std::string Quote(std::string_view text);

  Type type() const { return type_; }
  bool is_object() const { return type_ == Type::kObject; }
  // Of a string.
  const std::string& text() const { return text_; }
  // Of an array; of an object in their order.
  const std::vector<TemplateJson>& items() const { return items_; }
  const std::vector<Member>& members() const { return members_; }
  // Null when this is no object or has no such key.
  const TemplateJson* Find(std::string_view key) const;

 private:
  friend class TemplateJsonReader;

  bool Write(size_t limit, int indent, int depth, std::string* out) const;

  Type type_ = Type::kNull;
  std::string text_;  // a string's text, or how null, a boolean or a number is written
  std::vector<TemplateJson> items_;
  std::vector<Member> members_;
};

}  // namespace baton
