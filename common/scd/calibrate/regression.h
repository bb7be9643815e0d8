// A linear code of a source x [p] for a target y [q], from their moments:
//
//   z = A (x - mean x)      components in order of falling importance
//   y' = B z + mean y
//
// All factorisations solve the same regularised problem over another choice of directions. With
// C = C_xx + lambda I, a metric W (what an error of y costs) and a prior map B0 (x -> y, believed
// before any data), the best map of full rank and its weighted form are
//
//   G = C^-1 (C_xy + lambda B0),   M = C^1/2 G W^1/2.
//
// An orthonormal Q [p, r] gives A = diag(s) Q^T C^-1/2 and B = W^-1/2 (Q^T M)^T diag(1 / s), s_i
// the norm of row i of Q^T M: the best decoder for that encoder. The left singular vectors of M are
// the best Q for every rank at once (reduced-rank regression; A. Izenman, "Reduced-rank regression
// for the multivariate linear model", 1975). Scaled by s, a component has its natural spread in
// units of the weighted output, so an error dz costs |dz|^2; unit variances would make every noisy
// component as loud as the first.
//
// Several targets of one source have a code in common: they are one target of all their columns,
// whose metric has a block for each, so that W^1/2 does too and the targets' cross moments with
// each other are not asked for (but by kStacked).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "common/scd/calibrate/matrix.h"
#include "common/scd/calibrate/statistics.h"

namespace baton {

enum class Factorisation {
  kReducedRank,  // the closed form
  kStacked,      // the leading directions of [x y] together, as arXiv 2606.07684 words it
  kPca,          // the leading directions of x alone: an encoder that knows no target
};
const char* FactorisationName(Factorisation factorisation);  // "reduced_rank", "stacked", "pca"

struct RegressionOptions {
  Factorisation factorisation = Factorisation::kReducedRank;
  double ridge = 0.1;         // lambda in units of tr C_xx / p
  std::int64_t max_rank = 0;  // 0: as many as there are
};

struct LinearCode {
  Matrix encoder;                  // A [rank, p]
  Matrix decoder;                  // B [q, rank]
  std::vector<double> importance;  // [rank] E z_i^2 |B_i|_W^2 > 0: the weighted error without it

  std::int64_t rank() const { return encoder.rows; }
};

// What a code is decoded to, and what an error of it costs.
struct RegressionTarget {
  const Moments& moments;  // of the source, the same in all targets of a code, and this target
  const Matrix& metric;    // W [q, q], symmetric and positive definite
  const Matrix& prior;     // B0 [p, q] or empty, which is zero
};

// One code for all of `targets`, at least one: the rows of its decoder are the first one's, then
// the next one's, .... kStacked: of one target only. Components too small to be told from rounding
// are left out. Throws c10::Error when a decomposition does not converge.
LinearCode FitLinearCode(absl::Span<const RegressionTarget> targets,
                         const RegressionOptions& options);

// Of one target.
LinearCode FitLinearCode(const Moments& moments, const Matrix& metric, const Matrix& prior,
                         const RegressionOptions& options);

// (C_xx + lambda I)^-1 C_xy [p, q], lambda = ridge tr C_xx / p.
Matrix LeastSquares(const Moments& moments, double ridge);

// E |y - y'|_W^2 / E |y - mean y|_W^2 for y' = B A (x - mean x) + offset, on the rows of `moments`,
// with the first `rank` components.
double RelativeError(const Moments& moments, const Matrix& metric, const LinearCode& code,
                     std::int64_t rank, const std::vector<double>& offset);

}  // namespace baton
