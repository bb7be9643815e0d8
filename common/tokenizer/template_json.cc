#include "common/tokenizer/template_json.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>

#include "common/base/strings.h"

namespace baton {
namespace {

// Python's repr of a float: the shortest digits that read back, as a decimal fraction when the
// exponent is in [-4, 16).
std::string PythonFloat(double value) {
  char buffer[32];
  const auto [end, error] =
      std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  std::string_view text(buffer, static_cast<size_t>(end - buffer));
  std::string out;
  if (text.front() == '-') {
    out = "-";
    text.remove_prefix(1);
  }
  const size_t e = text.find('e');
  const int exponent = std::atoi(std::string(text.substr(e + 1)).c_str());
  std::string digits(1, text[0]);
  if (e > 2) digits += text.substr(2, e - 2);
  const int count = static_cast<int>(digits.size());
  if (exponent < -4 || exponent >= 16) {
    out += digits[0];
    if (count > 1) out += "." + digits.substr(1);
    const std::string power = std::to_string(std::abs(exponent));
    return out + (exponent < 0 ? "e-" : "e+") + (power.size() < 2 ? "0" : "") + power;
  }
  if (exponent < 0)
    return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  if (count <= exponent + 1) {
    return out + digits + std::string(static_cast<size_t>(exponent + 1 - count), '0') + ".0";
  }
  return out + digits.substr(0, static_cast<size_t>(exponent) + 1) + "." +
         digits.substr(static_cast<size_t>(exponent) + 1);
}

void AppendQuoted(std::string_view text, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  out->push_back('"');
  for (const char c : text) {
    switch (c) {
      case '"':
        out->append("\\\"");
        break;
      case '\\':
        out->append("\\\\");
        break;
      case '\n':
        out->append("\\n");
        break;
      case '\r':
        out->append("\\r");
        break;
      case '\t':
        out->append("\\t");
        break;
      case '\b':
        out->append("\\b");
        break;
      case '\f':
        out->append("\\f");
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out->append("\\u00");
          out->push_back(kHex[static_cast<unsigned char>(c) >> 4]);
          out->push_back(kHex[c & 15]);
        } else {
          out->push_back(c);
        }
    }
  }
  out->push_back('"');
}

}  // namespace

// Builds the tree from nlohmann's events, which keep the text of every number.
class TemplateJsonReader {
 public:
  using Json = nlohmann::json;

  bool null() { return Scalar(TemplateJson::Type::kNull, "null"); }
  bool boolean(bool value) { return Scalar(TemplateJson::Type::kBool, value ? "true" : "false"); }
  bool number_integer(int64_t value) {
    return Scalar(TemplateJson::Type::kNumber, std::to_string(value));
  }
  bool number_unsigned(uint64_t value) {
    return Scalar(TemplateJson::Type::kNumber, std::to_string(value));
  }
  bool number_float(double value, const std::string& text) {
    // An integer beyond 64 bits is one all the same.
    const bool integer = text.find_first_of(".eE") == std::string::npos;
    return Scalar(TemplateJson::Type::kNumber, integer ? text : PythonFloat(value));
  }
  bool string(std::string& text) { return Scalar(TemplateJson::Type::kString, std::move(text)); }
  bool binary(Json::binary_t& /*bytes*/) { return false; }
  bool start_object(size_t /*size*/) { return Open(TemplateJson::Type::kObject); }
  bool start_array(size_t /*size*/) { return Open(TemplateJson::Type::kArray); }
  bool end_array() { return Close(); }
  bool end_object() {
    MergeEqualKeys(&open_.back().members_);
    return Close();
  }
  bool key(std::string& text) {
    keys_.back() = std::move(text);
    return true;
  }
  bool parse_error(size_t position, const std::string& /*token*/,
                   const nlohmann::detail::exception& e) {
    error_ = Cat("not JSON at byte ", position,
                 e.id == 406 ? ": a number is beyond the range of a double" : "");
    return false;
  }

  absl::StatusOr<TemplateJson> Take(bool ok) {
    if (ok) return std::move(root_);
    return absl::InvalidArgumentError(error_.empty() ? "not JSON" : error_);
  }

 private:
  bool Scalar(TemplateJson::Type type, std::string text) {
    TemplateJson value;
    value.type_ = type;
    value.text_ = std::move(text);
    return Put(std::move(value));
  }
  bool Open(TemplateJson::Type type) {
    if (open_.size() >= kMaxTemplateJsonDepth) {
      error_ = Cat("JSON nested deeper than ", kMaxTemplateJsonDepth);
      return false;
    }
    open_.emplace_back().type_ = type;
    keys_.emplace_back();
    return true;
  }
  bool Close() {
    TemplateJson value = std::move(open_.back());
    open_.pop_back();
    keys_.pop_back();
    return Put(std::move(value));
  }
  bool Put(TemplateJson value) {
    if (open_.empty()) {
      root_ = std::move(value);
    } else if (open_.back().is_object()) {
      open_.back().members_.emplace_back(std::move(keys_.back()), std::move(value));
    } else {
      open_.back().items_.push_back(std::move(value));
    }
    return true;
  }

  // In O(n log n), whatever the keys.
  static void MergeEqualKeys(std::vector<TemplateJson::Member>* members) {
    std::vector<size_t> order(members->size());
    std::iota(order.begin(), order.end(), size_t{0});
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return (*members)[a].first < (*members)[b].first; });
    std::vector<bool> drop(members->size());
    bool any = false;
    size_t first = 0;
    for (size_t i = 1; i < order.size(); ++i) {
      if ((*members)[order[i]].first != (*members)[order[first]].first) {
        first = i;
        continue;
      }
      (*members)[order[first]].second = std::move((*members)[order[i]].second);
      drop[order[i]] = any = true;
    }
    if (!any) return;
    size_t kept = 0;
    for (size_t i = 0; i < members->size(); ++i) {
      if (drop[i]) continue;
      if (kept != i) (*members)[kept] = std::move((*members)[i]);
      ++kept;
    }
    members->resize(kept);
  }

  TemplateJson root_;
  std::vector<TemplateJson> open_;
  std::vector<std::string> keys_;  // of each open object, the key whose value comes next
  std::string error_;
};

absl::StatusOr<TemplateJson> TemplateJson::Parse(std::string_view text) {
  TemplateJsonReader reader;
  const bool ok = nlohmann::json::sax_parse(text.begin(), text.end(), &reader);
  return reader.Take(ok);
}

std::string TemplateJson::Quote(std::string_view text) {
  std::string out;
  AppendQuoted(text, &out);
  return out;
}

absl::StatusOr<std::string> TemplateJson::Dump(size_t limit, int indent) const {
  std::string out;
  if (!Write(limit, indent, 0, &out)) {
    return absl::ResourceExhaustedError(Cat("JSON of more than ", limit, " bytes"));
  }
  return out;
}

bool TemplateJson::Write(size_t limit, int indent, int depth, std::string* out) const {
  const bool object = type_ == Type::kObject;
  if (type_ == Type::kString) {
    AppendQuoted(text_, out);
  } else if (!object && type_ != Type::kArray) {
    out->append(text_);
  } else if (object ? members_.empty() : items_.empty()) {
    out->append(object ? "{}" : "[]");
  } else {
    const auto line = [&](int level) {
      if (indent > 0) {
        out->append("\n").append(static_cast<size_t>(indent) * static_cast<size_t>(level), ' ');
      }
    };
    const size_t count = object ? members_.size() : items_.size();
    out->push_back(object ? '{' : '[');
    for (size_t i = 0; i < count; ++i) {
      if (i > 0) out->append(indent > 0 ? "," : ", ");
      line(depth + 1);
      if (object) {
        AppendQuoted(members_[i].first, out);
        out->append(": ");
      }
      const TemplateJson& value = object ? members_[i].second : items_[i];
      if (!value.Write(limit, indent, depth + 1, out)) return false;
    }
    line(depth);
    out->push_back(object ? '}' : ']');
  }
  return out->size() <= limit;
}

const TemplateJson* TemplateJson::Find(std::string_view key) const {
  for (const Member& member : members_) {
    if (member.first == key) return &member.second;
  }
  return nullptr;
}

}  // namespace baton
