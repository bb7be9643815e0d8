// Range checks that both readers of a model's shape share.
#pragma once

#include "absl/status/status.h"
#include "common/weights/model_config.h"

namespace baton {

// Every number in its range and consistent with the others. Errors: InvalidArgument with field,
// value and limit.
absl::Status CheckModelConfig(const ModelConfig& config);

}  // namespace baton
