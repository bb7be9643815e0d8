// What both readers of a model's shape share.
#pragma once

#include "absl/status/status.h"
#include "common/weights/model_config.h"

namespace baton {

// Every number in its range and consistent with the others. Errors: InvalidArgument with field,
// value and limit.
absl::Status CheckModelConfig(const ModelConfig& config);

// YaRN's "mscale": what rotated q and k are multiplied with after stretching by `factor`
// (https://arxiv.org/abs/2309.00071, eq. 22); `mscale` weighs it, 1 in the paper.
double YarnMscale(double factor, double mscale);

// YaRN files may keep the length of the training in max_context: the model reaches
// original_max_context * factor. Call it once the RoPE fields are read.
void ExtendContext(ModelConfig* config);

}  // namespace baton
