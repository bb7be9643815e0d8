// Scalar quantisers made from samples, and what they cost.
//
// Up to 4 bits levels are Lloyd-Max (S. Lloyd, "Least squares quantization in PCM", 1982): each the
// mean of the samples nearest to it. 6 and 8 bits are uniform between the quantiles that leave out
// 0.05 % of the samples: there are too few samples per level for more, and too little to win.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace baton {

// `sorted`: at least one sample, ascending, finite. 2^bits levels, strictly ascending.
std::vector<float> MakeLevels(absl::Span<const float> sorted, int bits);

// Mean of (x - nearest level)^2 over the samples.
double Distortion(absl::Span<const float> sorted, absl::Span<const float> levels);

}  // namespace baton
