#include "common/rpc/call_context.h"

#include <grpcpp/client_context.h>
#include <grpcpp/server_context.h>

#include <algorithm>
#include <chrono>

#include "common/base/ids.h"

namespace baton {

absl::Time DeadlineOf(const grpc::ServerContextBase& context) {
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteFuture();
  return absl::FromChrono(deadline);
}

void SetDeadline(grpc::ClientContext& context, absl::Time deadline) {
  if (deadline != absl::InfiniteFuture()) context.set_deadline(absl::ToChronoTime(deadline));
}

bool IsValidRequestId(std::string_view id) {
  return !id.empty() && id.size() <= 128 && std::all_of(id.begin(), id.end(), [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '.' ||
           c == '_' || c == ':' || c == '-';
  });
}

std::string RequestIdOf(const grpc::ServerContextBase& context) {
  const auto& metadata = context.client_metadata();
  if (auto it = metadata.find(kRequestIdKey); it != metadata.end()) {
    const std::string_view id(it->second.data(), it->second.size());
    if (IsValidRequestId(id)) return std::string(id);
  }
  return NewRequestId();
}

void SetRequestId(grpc::ClientContext& context, const std::string& id) {
  // gRPC aborts the call on illegal characters.
  if (IsValidRequestId(id)) context.AddMetadata(kRequestIdKey, id);
}

}  // namespace baton
