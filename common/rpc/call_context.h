// What travels beside a call: deadline, request id.
#pragma once

#include <string>
#include <string_view>

#include "absl/time/time.h"

namespace grpc {
class ServerContextBase;
class ClientContext;
}  // namespace grpc

namespace baton {

// Metadata key of the request id, also an HTTP header of the gateway.
inline constexpr char kRequestIdKey[] = "x-request-id";

// absl::InfiniteFuture() when the client set none.
absl::Time DeadlineOf(const grpc::ServerContextBase& context);

// InfiniteFuture sets none.
void SetDeadline(grpc::ClientContext& context, absl::Time deadline);

// The client's `x-request-id` if it is 1–128 characters of [A-Za-z0-9._:-] (it is logged, so
// nothing else is taken); else a fresh one from NewRequestId() (common/base/ids.h).
std::string RequestIdOf(const grpc::ServerContextBase& context);
bool IsValidRequestId(std::string_view id);

// Sends `id` with the call.
void SetRequestId(grpc::ClientContext& context, const std::string& id);

}  // namespace baton
