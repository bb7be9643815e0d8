#include "router/gateway/backend.h"

#include <optional>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "common/base/strings.h"

namespace baton {
namespace {
constexpr char kRetryAfterUrl[] = "baton.v1/retry-after-ms";
}  // namespace

absl::Status WithRetryAfter(absl::Status status, absl::Duration after) {
  if (!status.ok()) {
    status.SetPayload(kRetryAfterUrl, absl::Cord(Cat(absl::ToInt64Milliseconds(after))));
  }
  return status;
}

absl::Duration RetryAfterOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kRetryAfterUrl);
  int64_t ms = 0;
  if (!payload.has_value() || !absl::SimpleAtoi(std::string(*payload), &ms)) {
    return absl::ZeroDuration();
  }
  return absl::Milliseconds(ms);
}

}  // namespace baton
