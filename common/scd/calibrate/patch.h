// Layers whose codes become the consumer's attention input, of which it makes K and V itself
// (PATCH, codec.h), and the choice of those that are better off with it.
//
//   const auto patched = PatchLayers(consumer, statistics, metric, base, ridge, {}, executor);
//   BATON_ASSIGN_OR_RETURN(PatchSelection s, SelectPatches(errors, options, judge));
//   Codec codec = WithPatches(base, patched, s.layers());
//
// The aligner is linear: a reduced-rank regression from the producer's normalised input to the
// consumer's with a ridge towards the producer's own, under the metric of K/V carried back through
// the consumer's projection. So an importance is in the units of other layers', and a layer takes
// no more bits than the one it replaces: what is compared is compared at equal bytes.
//
// Source: arXiv 2606.07684, section 4 (PATCH).
#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/scd/calibrate/layer_statistics.h"
#include "common/scd/calibrate/matrix.h"
#include "common/scd/calibrate/model_probe.h"
#include "common/scd/codec.h"
#include "kernels/executor.h"

namespace baton {

// How layers come to be patched.
enum class PatchChoice {
  kOff,
  kGreedy,  // the one that helps most beside those chosen, until none does
  kSingle,  // in the order of what each of them does alone
  kError,   // in the order of the base codec's error: a poor proxy, for comparison
  kList,    // as given
};
const char* PatchChoiceName(PatchChoice choice);  // "off", "greedy", "single", "error", "list"

struct PatchOptions {
  PatchChoice choice = PatchChoice::kOff;
  std::size_t most = 8;                  // layers
  std::vector<std::size_t> layers = {};  // kList only
};

// The metric W of a layer's [K | V] as one of its normalised attention input [hidden, hidden]: what
// an error there does to K and V, a k-norm taken as the scaling it is on average. A thousandth of
// the mean cost is added to each direction. Throws c10::Error.
Matrix InputMetric(const ProbedModel& consumer, std::size_t layer, const Matrix& metric,
                   const Moments& input);

// Every layer of `base` as a patched one, of at most as many bits. `statistics` with inputs;
// `metric`: of the consumer's K/V. Throws c10::Error.
std::vector<CodecLayer> PatchLayers(const ProbedModel& consumer,
                                    const CalibrationStatistics& statistics,
                                    const std::vector<Matrix>& metric, const Codec& base,
                                    double ridge, const CalibrationProgress& progress,
                                    Executor& executor);

Codec WithPatches(const Codec& base, const std::vector<CodecLayer>& patched,
                  absl::Span<const std::size_t> layers);

// KL of the base codec with each of these sets of layers patched.
using PatchJudge = std::function<absl::StatusOr<std::vector<double>>(
    const std::vector<std::vector<std::size_t>>& sets)>;

struct PatchSelection {
  double base_kl = 0;
  std::vector<double> single_kl;   // of each layer patched alone; empty where it was not asked
  std::vector<std::size_t> order;  // in which layers were added
  std::vector<double> curve;       // KL with the first k + 1 of them
  std::size_t count = 0;           // of `order`, those that are patched

  std::vector<std::size_t> layers() const {
    return {order.begin(), order.begin() + static_cast<std::ptrdiff_t>(count)};
  }
};

// The shortest beginning of the order with the lowest KL, which may be none of it; of kList all.
// Greedy tries again only layers that help alone. `errors`: of each layer, for kError. Errors are
// the judge's; INVALID_ARGUMENT for a list with a layer that is not there or comes twice.
absl::StatusOr<PatchSelection> SelectPatches(absl::Span<const double> errors,
                                             const PatchOptions& options, const PatchJudge& judge);

}  // namespace baton
