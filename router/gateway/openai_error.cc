#include "router/gateway/openai_error.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string_view>

#include "absl/strings/ascii.h"
#include "common/base/strings.h"
#include "common/rpc/status.h"
#include "router/gateway/backend.h"
#include "router/gateway/json.h"

namespace baton {
namespace {

// "sampling.top_p: 2 is out of range" -> "top_p"; "" when the message names no field.
std::string LeadingField(std::string_view message) {
  const size_t colon = message.find(": ");
  if (colon == std::string_view::npos || colon == 0) return "";
  std::string_view field = message.substr(0, colon);
  for (char c : field) {
    if (!absl::ascii_islower(c) && !absl::ascii_isdigit(c) && c != '_' && c != '.' && c != '[' &&
        c != ']') {
      return "";
    }
  }
  for (std::string_view prefix : {"sampling.", "stop."}) {
    if (field.substr(0, prefix.size()) == prefix) field.remove_prefix(prefix.size());
  }
  return std::string(field);
}

std::string TypeOf(int status) {
  if (status == 401) return "authentication_error";
  if (status == 403) return "permission_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

}  // namespace

ApiError InvalidRequest(const std::string& param, const std::string& message) {
  ApiError error;
  error.param = param;
  error.message = message;
  return error;
}

ApiError FromStatus(const absl::Status& status) {
  ApiError error;
  error.status = ToHttpStatus(status.code());
  error.message = std::string(status.message());
  error.type = TypeOf(error.status);
  error.retry_after = RetryAfterOf(status);
  switch (error.status) {
    case 400:
      error.param = LeadingField(error.message);
      break;
    case 401:
      error.code = "invalid_api_key";
      break;
    case 404:
      error.param = "model";
      error.code = "model_not_found";
      break;
    case 429:
      error.code = "rate_limit_exceeded";
      if (error.retry_after <= absl::ZeroDuration()) error.retry_after = absl::Seconds(1);
      break;
    case 503:
      error.code = "service_unavailable";
      break;
    case 504:
      error.code = "timeout";
      break;
    default:
      break;
  }
  return error;
}

ApiError FromHttpStatus(int status, const std::string& message) {
  ApiError error;
  error.status = status;
  error.message = message;
  error.type = TypeOf(status);
  return error;
}

std::string ErrorBody(const ApiError& error) {
  const auto or_null = [](const std::string& text) {
    return text.empty() ? nlohmann::json() : nlohmann::json(text);
  };
  return DumpJson({{"error",
                    {{"message", error.message},
                     {"type", error.type},
                     {"param", or_null(error.param)},
                     {"code", or_null(error.code)}}}});
}

HttpResponse ErrorResponse(const ApiError& error) {
  HttpResponse response;
  response.status = error.status;
  response.body = ErrorBody(error);
  if (error.retry_after > absl::ZeroDuration()) {
    const int64_t seconds =
        std::max<int64_t>(1, absl::ToInt64Seconds(absl::Ceil(error.retry_after, absl::Seconds(1))));
    response.headers.emplace_back("retry-after", Cat(seconds));
  }
  return response;
}

}  // namespace baton
