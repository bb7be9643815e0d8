// Errors as OpenAI's API words them: {"error": {"message", "type", "param", "code"}}.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "router/gateway/http_message.h"

namespace baton {

struct ApiError {
  int status = 400;  // HTTP
  std::string message;
  std::string type = "invalid_request_error";
  std::string param;                                  // empty: null
  std::string code;                                   // empty: null
  absl::Duration retry_after = absl::ZeroDuration();  // zero: no Retry-After header
};

// 400 about one field.
ApiError InvalidRequest(const std::string& param, const std::string& message);
// From a backend's status; `param` is the field its message begins with, if it does.
ApiError FromStatus(const absl::Status& status);
// From an HTTP status of the server itself (404, 405, 408, 413, ...).
ApiError FromHttpStatus(int status, const std::string& message);

// The JSON text of the body; also the data of an SSE error event.
std::string ErrorBody(const ApiError& error);
// With Retry-After when there is a hint.
HttpResponse ErrorResponse(const ApiError& error);

}  // namespace baton
