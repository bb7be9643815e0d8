// JSON from clients, bounded, and typed access to its fields. Private to the gateway.
#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "router/gateway/openai_error.h"

namespace baton {

inline constexpr int kMaxJsonDepth = 64;

// INVALID_ARGUMENT: malformed, nested deeper than kMaxJsonDepth, not UTF-8, a number out of range,
// a key twice in one object (which of the two counts would be a guess).
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text);

// Valid UTF-8 in, always a string out (anything invalid becomes U+FFFD).
std::string DumpJson(const nlohmann::json& value);

// "a string", "an integer", ...: for messages.
std::string JsonTypeName(const nlohmann::json& value);

// Reads fields of one object. null means "not given". The first wrong type is kept in error();
// everything read after it is "not given".
class JsonReader {
 public:
  explicit JsonReader(const nlohmann::json& object) : object_(object) {}

  // Null pointer: absent or null.
  const nlohmann::json* Get(const char* key);
  std::optional<bool> Bool(const char* key);
  std::optional<int64_t> Int(const char* key);
  std::optional<double> Number(const char* key);
  std::optional<std::string> String(const char* key);
  std::optional<std::vector<int64_t>> Ints(const char* key);

  void Fail(const std::string& param, const std::string& message);
  const std::optional<ApiError>& error() const { return error_; }

  // Keys nobody asked for, in the object's order.
  std::vector<std::string> Unread() const;

 private:
  template <typename T, typename Is>
  std::optional<T> Typed(const char* key, const char* wanted, Is is);

  const nlohmann::json& object_;
  std::set<std::string, std::less<>> read_;
  std::optional<ApiError> error_;
};

}  // namespace baton
