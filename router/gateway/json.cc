#include "router/gateway/json.h"

#include <utility>

#include "common/base/strings.h"

namespace baton {

using nlohmann::json;

namespace {

// Deepest nesting of brackets outside strings.
int JsonDepth(std::string_view text) {
  int depth = 0;
  int deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

// nlohmann's "[json.exception.parse_error.101] parse error at line 1, column 5: ..." without its
// tag. It quotes input, which may not be UTF-8.
std::string CleanMessage(std::string message) {
  const size_t end = message.find("] ");
  if (!message.empty() && message.front() == '[' && end != std::string::npos) {
    message.erase(0, end + 2);
  }
  if (message.size() > 300) message.resize(300);
  for (char& c : message) {
    if (static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) > 0x7e) c = '?';
  }
  return message;
}

}  // namespace

absl::StatusOr<json> ParseJson(std::string_view text) {
  if (JsonDepth(text) > kMaxJsonDepth) {
    return absl::InvalidArgumentError(
        Cat("the JSON body is nested deeper than ", kMaxJsonDepth, " levels"));
  }
  std::vector<std::set<std::string>> keys;  // of the objects that are open
  std::optional<std::string> twice;
  const auto watch = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      keys.pop_back();
    } else if (event == json::parse_event_t::key) {
      const std::string& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second && !twice) twice = key.substr(0, 40);
    }
    return true;
  };
  try {
    json value = json::parse(text, watch);
    if (!twice) return value;
    return absl::InvalidArgumentError(
        CleanMessage(Cat("the request body has the key '", *twice, "' twice in one object")));
  } catch (const json::exception& e) {
    return absl::InvalidArgumentError(
        Cat("the request body is not valid JSON: ", CleanMessage(e.what())));
  }
}

std::string DumpJson(const json& value) {
  return value.dump(-1, ' ', false, json::error_handler_t::replace);
}

std::string JsonTypeName(const json& value) {
  switch (value.type()) {
    case json::value_t::null:
      return "null";
    case json::value_t::boolean:
      return "a boolean";
    case json::value_t::number_integer:
    case json::value_t::number_unsigned:
      return "an integer";
    case json::value_t::number_float:
      return "a number";
    case json::value_t::string:
      return "a string";
    case json::value_t::array:
      return "an array";
    default:
      return "an object";
  }
}

const json* JsonReader::Get(const char* key) {
  read_.insert(key);
  if (error_) return nullptr;
  const auto it = object_.find(key);
  return it == object_.end() || it->is_null() ? nullptr : &*it;
}

template <typename T, typename Is>
std::optional<T> JsonReader::Typed(const char* key, const char* wanted, Is is) {
  const json* value = Get(key);
  if (value == nullptr) return std::nullopt;
  if (!is(*value)) {
    Fail(key, Cat("'", key, "' must be ", wanted, ", got ", JsonTypeName(*value)));
    return std::nullopt;
  }
  return value->get<T>();
}

std::optional<bool> JsonReader::Bool(const char* key) {
  return Typed<bool>(key, "a boolean", [](const json& v) { return v.is_boolean(); });
}

std::optional<int64_t> JsonReader::Int(const char* key) {
  return Typed<int64_t>(key, "an integer that fits 63 bits", [](const json& v) {
    return v.is_number_integer() &&
           (!v.is_number_unsigned() || v.get<uint64_t>() <= uint64_t{INT64_MAX});
  });
}

std::optional<double> JsonReader::Number(const char* key) {
  return Typed<double>(key, "a number", [](const json& v) { return v.is_number(); });
}

std::optional<std::string> JsonReader::String(const char* key) {
  return Typed<std::string>(key, "a string", [](const json& v) { return v.is_string(); });
}

std::optional<std::vector<int64_t>> JsonReader::Ints(const char* key) {
  return Typed<std::vector<int64_t>>(key, "an array of integers", [](const json& v) {
    if (!v.is_array()) return false;
    for (const json& item : v) {
      if (!item.is_number_integer()) return false;
      if (item.is_number_unsigned() && item.get<uint64_t>() > uint64_t{INT64_MAX}) return false;
    }
    return true;
  });
}

std::vector<std::string> JsonReader::Unread() const {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object_.items()) {
    if (read_.find(key) == read_.end()) keys.push_back(key);
  }
  return keys;
}

void JsonReader::Fail(const std::string& param, const std::string& message) {
  if (!error_) error_ = InvalidRequest(param, message);
}

}  // namespace baton
