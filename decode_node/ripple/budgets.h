// How many KV tokens each layer keeps.
//
//   BATON_ASSIGN_OR_RETURN(auto weights, RippleWeights(sensitivities, {}));
//   BATON_ASSIGN_OR_RETURN(auto budgets,
//                          WeightedBudgets(weights, {.total = 6000, .context = 2000}));
//
// Every rule but PyramidPublished spends its total exactly. Pure and thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace baton {

// In tokens.
struct BudgetLimits {
  std::int64_t total = 0;      // over all layers
  std::int64_t context = 0;    // of the sequence: no layer keeps more
  std::int64_t min_layer = 1;  // sinks + window; a shorter context lowers it
  // Budgets are whole pages of this many tokens: the total is rounded down to pages, `context` and
  // `min_layer` up.
  std::int64_t page_tokens = 1;
};

struct LayerBudgets {
  std::vector<std::int64_t> tokens;  // [layers]
  std::int64_t total = 0;            // their sum
};

// b_l = clip(lambda w_l, min_layer, context), lambda by bisection so that the sum is the total;
// then floor, and the rest by largest remainder, ties to the lower layer. Weights count relative to
// their largest; below 1e-12 of it they are raised to that, all zero means uniform. A total of at
// least layers * context keeps everything. INVALID_ARGUMENT for no layers, weights that are
// negative or not finite, limits below 1, and a total below layers * min_layer, which states the
// smallest one that is feasible.
absl::StatusOr<LayerBudgets> WeightedBudgets(absl::Span<const double> weights,
                                             const BudgetLimits& limits);

absl::StatusOr<LayerBudgets> UniformBudgets(int layers, const BudgetLimits& limits);

// A line from the first layer to the last; beta >= 1 is the steepness, the last layer's share of
// the mean being 1/beta (PyramidKV, arXiv 2406.02069, section 4.2), with an exact total.
absl::StatusOr<LayerBudgets> PyramidBudgets(int layers, double beta, const BudgetLimits& limits);

struct PyramidOptions {
  std::int64_t capacity = 0;  // mean tokens a layer, the window among them
  std::int64_t window = 64;
  std::int64_t beta = 20;
};

// The schedule as the authors' code has it (KVCache-Factory, PyramidKVCluster): the step is an
// integer division by layers - 1, so that the sum is over layers * capacity where it does not
// divide. Contexts shorter than 2 (capacity - window) get the capacity in every layer.
absl::StatusOr<LayerBudgets> PyramidPublished(int layers, std::int64_t context,
                                              const PyramidOptions& options);

enum class SensitivityScale { kLinear, kLog };

struct RippleOptions {
  // Ratio of the most to the least sensitive layer's weight before clipping. Absent: from the data,
  // (s_max / s_min)^(1 / (1 + damage_exponent)), the optimum where damage falls as
  // budget^-damage_exponent.
  std::optional<double> ratio = 16;
  double damage_exponent = 0.9;
  double clip = 4;  // weights stay in [1 / clip, clip]
  // s~ is the min-max of s or of log s; with kLog a zero counts as the smallest positive s.
  SensitivityScale scale = SensitivityScale::kLinear;
  // False: the exponent is s~ itself, as the paper prints it (its lower clip never binds then).
  bool centred = true;
};

// w_l = clip(r^(s~_l - mean s~), 1 / clip, clip) of RippleKV from sensitivities in nats, or from
// local responses (the paper's ablation). All equal: all 1. INVALID_ARGUMENT for sensitivities that
// are negative or not finite and for ratio or clip below 1.
absl::StatusOr<std::vector<double>> RippleWeights(absl::Span<const double> sensitivities,
                                                  const RippleOptions& options);

}  // namespace baton
