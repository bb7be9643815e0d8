// The effective configuration, the reference page and the comparison at reload.
#include "common/base/strings.h"
#include "common/config/field_value.h"
#include "common/config/load.h"

namespace baton::config::load_internal {
namespace {

bool IsSafePlain(std::string_view text) {
  if (text.empty()) return false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '/' || c == '_';
    const bool other = (c >= '0' && c <= '9') || c == '.' || c == '-';
    if (!letter && !(other && i > 0)) return false;
  }
  // Words that some YAML reader takes for something else.
  for (std::string_view word :
       {"null", "true", "false", "yes", "no", "on", "off", "y", "n", "auto"}) {
    if (text.size() != word.size()) continue;
    bool same = true;
    for (size_t i = 0; i < word.size(); ++i) same = same && (text[i] | 0x20) == word[i];
    if (same) return false;
  }
  return true;
}

std::string Quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + "\"";
}

std::string Text(std::string_view text) {
  return IsSafePlain(text) ? std::string(text) : Quote(text);
}

std::string ValueText(const FieldSpec& field, const FieldValue& value) {
  if (std::holds_alternative<std::monostate>(value)) return "null";
  if (const auto* list = std::get_if<std::vector<std::string>>(&value)) {
    if (field.secret && !list->empty()) return "[\"********\"]";
    std::string out = "[";
    for (size_t i = 0; i < list->size(); ++i) out += (i == 0 ? "" : ", ") + Text((*list)[i]);
    return out + "]";
  }
  if (const auto* text = std::get_if<std::string>(&value)) {
    return field.secret && !text->empty() ? "\"********\"" : Text(*text);
  }
  if (field.secret) return "\"********\"";
  if (const bool* flag = std::get_if<bool>(&value)) return *flag ? "true" : "false";
  if (const double* real = std::get_if<double>(&value)) return FormatDouble(*real);
  const int64_t number = std::get<int64_t>(value);
  if (field.type == FieldType::kDuration) return FormatDuration(std::chrono::nanoseconds(number));
  if (field.type == FieldType::kBytes) return FormatBytes(number);
  return std::to_string(number);
}

void PrintSection(const SectionSpec& section, const void* object, const void* defaults,
                  const std::string& indent, std::string& out);

void PrintList(const FieldSpec& field, const void* object, const std::string& indent,
               std::string& out) {
  const size_t count = field.size(object);
  if (count == 0) {
    out += fmt::format("{}{}: []\n", indent, field.key);
    return;
  }
  out += fmt::format("{}{}:\n", indent, field.key);
  for (size_t i = 0; i < count; ++i) {
    std::string item;
    PrintSection(*field.section, field.at(object, i), field.section->defaults.get(),
                 indent + "    ", item);
    item.replace(indent.size() + 2, 1, "-");
    out += item;
  }
}

void PrintSection(const SectionSpec& section, const void* object, const void* defaults,
                  const std::string& indent, std::string& out) {
  for (const FieldSpec& field : section.fields) {
    if (field.type == FieldType::kSection) {
      out += fmt::format("{}{}:\n", indent, field.key);
      PrintSection(*field.section, field.at(object, 0), field.at(defaults, 0), indent + "  ", out);
    } else if (field.type == FieldType::kSectionList) {
      PrintList(field, object, indent, out);
    } else {
      const FieldValue value = field.get(object);
      const bool unset = std::holds_alternative<std::monostate>(value);
      out += fmt::format("{}{}: {}{}\n", indent, field.key, ValueText(field, value),
                         unset                          ? "  # not set"
                         : value == field.get(defaults) ? "  # default"
                                                        : "");
    }
  }
}

std::string Cell(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '|') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out;
}

std::string Notes(const FieldSpec& field) {
  std::string notes = field.help;
  const auto add = [&notes](const std::string& text) {
    notes += (notes.empty() ? "" : " ") + text;
  };
  if (!field.example.empty()) add("Example: `" + field.example + "`.");
  if (!field.env.empty()) add("Environment: `" + field.env + "`.");
  if (field.expand_env) add("`${NAME}` is expanded.");
  if (field.secret) add("Never printed.");
  return notes;
}

void ReferenceSection(const SectionSpec& section, const void* defaults, const std::string& path,
                      std::string& out) {
  if (!section.help.empty()) out += section.help + "\n\n";
  bool table = false;
  for (const FieldSpec& field : section.fields) {
    if (field.section != nullptr) continue;
    if (!table) {
      out += "| key | type | default | allowed | reload | meaning |\n|---|---|---|---|---|---|\n";
      table = true;
    }
    const std::string key = path.empty() ? field.key : path + "." + field.key;
    const FieldValue value = field.get(defaults);
    std::string fallback = "`" + ValueText(field, value) + "`";
    if (field.required) fallback = "required";
    if (std::holds_alternative<std::monostate>(value)) fallback = "not set";
    std::string type = TypeName(field);
    if (type.starts_with("a ")) type.erase(0, 2);
    if (type.starts_with("an ")) type.erase(0, 3);
    out +=
        fmt::format("| `{}` | {} | {} | {} | {} | {} |\n", key, type, Cell(fallback),
                    Cell(Allowed(field)), field.reloadable ? "yes" : "restart", Cell(Notes(field)));
  }
  if (table) out += "\n";
  for (const FieldSpec& field : section.fields) {
    if (field.section == nullptr) continue;
    const bool list = field.type == FieldType::kSectionList;
    const std::string key =
        (path.empty() ? field.key : path + "." + field.key) + (list ? "[]" : "");
    out += fmt::format("## `{}`\n\n", key);
    if (!field.help.empty()) out += field.help + "\n\n";
    if (list && !Allowed(field).empty()) out += "Allowed: " + Allowed(field) + ".\n\n";
    ReferenceSection(*field.section, list ? field.section->defaults.get() : field.at(defaults, 0),
                     key, out);
  }
}

void CollectChanged(const SectionSpec& section, const void* before, const void* after,
                    bool inherited, bool reloadable, const std::string& path,
                    std::vector<std::string>& out) {
  for (const FieldSpec& field : section.fields) {
    const std::string key = path.empty() ? field.key : path + "." + field.key;
    const bool reload = inherited || field.reloadable;
    if (field.type == FieldType::kSection) {
      CollectChanged(*field.section, field.at(before, 0), field.at(after, 0), reload, reloadable,
                     key, out);
    } else if (field.type == FieldType::kSectionList) {
      if (field.size(before) != field.size(after)) {
        if (reload == reloadable) out.push_back(key);
        continue;
      }
      for (size_t i = 0; i < field.size(before); ++i) {
        CollectChanged(*field.section, field.at(before, i), field.at(after, i), reload, reloadable,
                       fmt::format("{}[{}]", key, i), out);
      }
    } else if (reload == reloadable && field.get(before) != field.get(after)) {
      out.push_back(key);
    }
  }
}

void CopySection(const SectionSpec& section, const void* from, void* to, bool inherited) {
  for (const FieldSpec& field : section.fields) {
    const bool reload = inherited || field.reloadable;
    if (field.type == FieldType::kSection) {
      CopySection(*field.section, field.at(from, 0), field.sub(to), reload);
    } else if (field.type == FieldType::kSectionList) {
      if (reload) {
        field.copy(to, from);
      } else if (field.size(from) == field.size(to)) {
        for (size_t i = 0; i < field.size(to); ++i) {
          CopySection(*field.section, field.at(from, i), field.mutable_at(to, i), false);
        }
      }
    } else if (reload) {
      field.set(to, field.get(from));
    }
  }
}

}  // namespace

std::string PrintEffective(const SectionSpec& section, const void* object, const void* defaults) {
  std::string out;
  PrintSection(section, object, defaults, "", out);
  return out;
}

std::string Reference(const SectionSpec& section, const void* defaults, std::string_view title) {
  std::string out = fmt::format("# {}\n\n", title);
  out +=
      "YAML 1.2, one document, no anchors. Values are typed by this table, never guessed: text "
      "keeps "
      "`no` and `010` as written, booleans are `true` and `false` only, integers are decimal "
      "digits "
      "without leading zeros or `_`. Durations are a number and one of `ns us ms s m h d`, sizes "
      "bytes or a number and one of `KiB MiB GiB TiB kB MB GB TB`. `null` means \"not set\". "
      "Unknown "
      "and repeated keys are errors. *reload* says what SIGHUP applies.\n\n";
  ReferenceSection(section, defaults, "", out);
  return out;
}

std::vector<std::string> Changed(const SectionSpec& section, const void* before, const void* after,
                                 bool reloadable) {
  std::vector<std::string> keys;
  CollectChanged(section, before, after, false, reloadable, "", keys);
  return keys;
}

void CopyReloadable(const SectionSpec& section, const void* from, void* to) {
  CopySection(section, from, to, false);
}

}  // namespace baton::config::load_internal
