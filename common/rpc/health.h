// Client of the standard grpc.health.v1 service.
#pragma once

#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/time/time.h"

namespace grpc {
class Channel;
}

namespace baton {

// OK: `service` serves ("" = the whole server). UNAVAILABLE: it says it does not, or the server
// can't be reached. NOT_FOUND: the server does not know the service. DEADLINE_EXCEEDED.
// Blocks up to `timeout`.
absl::Status CheckHealth(const std::shared_ptr<grpc::Channel>& channel, const std::string& service,
                         absl::Duration timeout);

// The same without blocking; `done` runs once, on a gRPC thread.
void CheckHealthAsync(const std::shared_ptr<grpc::Channel>& channel, const std::string& service,
                      absl::Duration timeout, absl::AnyInvocable<void(absl::Status)> done);

}  // namespace baton
