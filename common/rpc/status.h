// Between absl::Status, grpc::Status and HTTP status codes.
#pragma once

#include <grpcpp/support/status.h>

#include "absl/status/status.h"

namespace baton {

// Codes are the same numbers in both worlds. Messages are cut at 4 KiB (they travel as metadata).
grpc::Status ToGrpcStatus(const absl::Status& status);
absl::Status FromGrpcStatus(const grpc::Status& status);

// 200, 400 (INVALID_ARGUMENT, OUT_OF_RANGE, FAILED_PRECONDITION), 401, 403, 404, 409, 429, 499
// (CANCELLED: the client went away), 500, 501, 503, 504.
int ToHttpStatus(absl::StatusCode code);

// True when the same call may succeed elsewhere or later (UNAVAILABLE, RESOURCE_EXHAUSTED,
// ABORTED).
bool IsRetryable(absl::StatusCode code);

}  // namespace baton
