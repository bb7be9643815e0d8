// A check of XML that knows no more than tags, attributes and text.
#pragma once

#include <cctype>
#include <string>
#include <string_view>
#include <vector>

namespace baton {

// Every tag is closed in order, attributes are quoted, no stray & or <. A <!DOCTYPE ...> may begin
// it.
inline bool IsWellFormed(std::string_view text) {
  std::vector<std::string> open;
  if (text.starts_with("<!DOCTYPE")) text.remove_prefix(text.find('>') + 1);
  bool any = false;
  for (std::size_t i = 0; i < text.size();) {
    if (text[i] == '&') {
      const std::size_t end = text.find(';', i);
      if (end == std::string_view::npos || end - i > 6) return false;
      i = end + 1;
    } else if (text[i] != '<') {
      if (open.empty() && any && std::isspace(static_cast<unsigned char>(text[i])) == 0) {
        return false;
      }
      ++i;
    } else {
      std::size_t end = i + 1;
      bool quoted = false;
      while (end < text.size() && (quoted || text[end] != '>')) {
        if (text[end] == '"') quoted = !quoted;
        if (text[end] == '<') return false;
        ++end;
      }
      if (end == text.size()) return false;
      const std::string_view tag = text.substr(i + 1, end - i - 1);
      const std::string_view name = tag.substr(0, tag.find_first_of(" /\n"));
      if (tag.starts_with("/")) {
        if (open.empty() || open.back() != tag.substr(1)) return false;
        open.pop_back();
      } else if (!tag.ends_with("/")) {
        open.emplace_back(name);
      }
      any = true;
      i = end + 1;
    }
  }
  return any && open.empty();
}

}  // namespace baton
