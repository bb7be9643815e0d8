#include "router/gateway/json.h"

#include <utility>

#include "common/base/strings.h"

namespace baton {

using nlohmann::json;

namespace {

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

// Finds what is wrong with a text before anything is made of it. json::parse() with a callback
// would do so in one pass, but goes through an array anew after each object in it.
class Checker : public nlohmann::json_sax<json> {
 public:
  const std::string& error() const { return error_; }

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return Open(); }
  bool key(string_t& key) override {
    if (open_.back().insert(key).second) return true;
    return Refuse(CleanMessage(
        Cat("the request body has the key '", key.substr(0, 40), "' twice in one object")));
  }
  bool end_object() override { return Close(); }
  bool start_array(size_t) override { return Open(); }
  bool end_array() override { return Close(); }
  bool parse_error(size_t, const std::string&, const json::exception& e) override {
    return Refuse(Cat("the request body is not valid JSON: ", CleanMessage(e.what())));
  }

 private:
  bool Open() {
    if (open_.size() == kMaxJsonDepth) {
      return Refuse(Cat("the JSON body is nested deeper than ", kMaxJsonDepth, " levels"));
    }
    open_.emplace_back();
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }
  bool Refuse(std::string error) {
    error_ = std::move(error);
    return false;
  }

  std::vector<std::set<std::string>> open_;  // keys of the objects and arrays around
  std::string error_;
};

}  // namespace

absl::StatusOr<json> ParseJson(std::string_view text) {
  Checker checker;
  if (!json::sax_parse(text, &checker)) {
    return absl::InvalidArgumentError(checker.error());
  }
  return json::parse(text);
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
