// What an error of a layer's [K | V] costs: a symmetric matrix W [2 * kv_dim, 2 * kv_dim] for
// |e|_W^2 = e^T W e.
//
// `identity`: every number counts alike.
//
// `fisher`: measured at the output (fisher.h).
//
// `heuristic`: the expected square of what the error does to the attention output, in parts of the
// stream it is added to. A query head h that puts the weight a_n on row n turns an error dv of a
// value into a_n W_O^h dv, and an error dk of a key (before RoPE) into a change of its score by
// q^T R dk / sqrt(d), which moves the output by about a_n W_O^h (v - mean v) times that. So, up to
// the common factor sum a_n^2,
//
//   W_V = sum_h M_h,   W_K = sum_h tr(M_h Cov v) / d * mean over distances of R^T E[q q^T] R
//
// with M_h = W_O^h^T W_O^h, h over the query heads of a KV head, and queries as the model makes
// them on the calibration text. All of it is divided by the mean square of the layer's input, so
// that layers compare. Heads do not mix: W is zero between them, and between K and V.
#pragma once

#include <cstdint>
#include <vector>

#include "common/scd/calibrate/matrix.h"
#include "common/scd/calibrate/model_probe.h"

namespace baton {

// No direction is free: this part of the mean cost is added to each.
inline constexpr double kMetricFloor = 1e-3;

enum class Metric { kIdentity, kHeuristic, kFisher };
const char* MetricName(Metric metric);  // "identity", "heuristic", "fisher"

// Sums over one layer's queries, and the energy of its input.
class QuerySums {
 public:
  QuerySums(std::int64_t heads, std::int64_t head_dim);

  // Rows [begin, states.rows). Throws c10::Error when memory runs out.
  void Add(const LayerStates& states, std::int64_t begin);

  // E q q^T of each query head, [heads * head_dim, head_dim].
  Matrix Moment() const;
  // Mean of LayerStates::energy.
  double Energy() const;

 private:
  std::int64_t heads_;
  std::int64_t head_dim_;
  std::int64_t rows_ = 0;
  double energy_ = 0;
  Matrix moment_;
};

// The heuristic metric of one layer of `model`. `target`: covariance of its [K | V]
// [2 * kv_dim, 2 * kv_dim]. `max_distance`: of a query from a key, in tokens; distances up to it
// count alike. With kMetricFloor.
Matrix HeuristicMetric(const ProbedModel& model, int layer, const QuerySums& queries,
                       const Matrix& target, std::int32_t max_distance);

}  // namespace baton
