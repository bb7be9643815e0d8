#include "common/scd/calibrate/regression.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <utility>

#include "common/scd/calibrate/tensors.h"

namespace baton {
namespace {

// Components whose importance is below this part of the first's are rounding.
constexpr double kLeastImportance = 1e-13;

double Lambda(const Moments& moments, double ridge) {
  return ridge * View(moments.source).diagonal().mean().item<double>();
}

at::Tensor WithRidge(const Moments& moments, double lambda) {
  at::Tensor c = View(moments.source).clone();
  c.diagonal().add_(lambda);
  return c;
}

// A symmetric matrix's roots, from one decomposition. Eigenvalues that rounding made negative, or
// that are too small to divide by, count as the smallest that is not.
struct Roots {
  at::Tensor root, inverse;

  explicit Roots(const at::Tensor& symmetric) {
    const auto [values, vectors] = at::linalg_eigh(symmetric);
    const double floor = std::max(values.max().item<double>() * 1e-14, 1e-300);
    const at::Tensor s = values.clamp_min(floor).sqrt();
    root = at::mm(vectors * s, vectors.t());
    inverse = at::mm(vectors / s, vectors.t());
  }
};

// Eigenvectors as columns, those of the largest eigenvalues first.
at::Tensor LeadingVectors(const at::Tensor& symmetric) {
  return std::get<1>(at::linalg_eigh(symmetric)).flip(1);
}

// Q [p, k], orthonormal.
at::Tensor Directions(Factorisation factorisation, const Moments& moments, const at::Tensor& root,
                      const at::Tensor& m) {
  switch (factorisation) {
    case Factorisation::kReducedRank:
      return std::get<0>(at::linalg_svd(m, /*full_matrices=*/false));
    case Factorisation::kPca:
      // They commute with C^1/2.
      return LeadingVectors(View(moments.source));
    case Factorisation::kStacked: {
      const at::Tensor cross = View(moments.cross);
      const at::Tensor joint = at::cat({at::cat({View(moments.source), cross}, 1),
                                        at::cat({cross.t(), View(moments.target)}, 1)},
                                       0);
      const std::int64_t p = moments.source.rows;
      const at::Tensor of_x = LeadingVectors(joint).slice(0, 0, p).slice(1, 0, p);
      return std::get<0>(at::linalg_qr(at::mm(root, of_x)));
    }
  }
  return {};
}

}  // namespace

const char* FactorisationName(Factorisation factorisation) {
  switch (factorisation) {
    case Factorisation::kReducedRank:
      return "reduced_rank";
    case Factorisation::kStacked:
      return "stacked";
    case Factorisation::kPca:
      return "pca";
  }
  return "unknown";
}

LinearCode FitLinearCode(absl::Span<const RegressionTarget> targets,
                         const RegressionOptions& options) {
  const Moments& moments = targets.front().moments;
  const double lambda = Lambda(moments, options.ridge);
  const Roots source(WithRidge(moments, lambda));
  std::vector<at::Tensor> parts;            // of M, [p, q] each
  std::vector<at::Tensor> inverse_weights;  // W^-1/2
  for (const RegressionTarget& t : targets) {
    const Roots weight(View(t.metric));
    at::Tensor target = View(t.moments.cross).clone();
    if (!t.prior.empty()) target.add_(View(t.prior), lambda);
    parts.push_back(at::mm(at::mm(source.inverse, target), weight.root));
    inverse_weights.push_back(weight.inverse);
  }
  const at::Tensor m = at::cat(parts, 1);

  const at::Tensor q = Directions(options.factorisation, moments, source.root, m);
  const at::Tensor projected = at::mm(q.t(), m);                           // [k, q]
  const at::Tensor s = projected.norm(2, {1}, /*keepdim=*/true);           // [k, 1]
  const at::Tensor a = at::mm(q.t(), source.inverse) * s;                  // [k, p]
  const at::Tensor spread = (at::mm(a, View(moments.source)) * a).sum(1);  // E z_i^2
  const double largest = spread.max().item<double>();
  const at::Tensor order = std::get<1>(spread.sort(/*dim=*/0, /*descending=*/true));
  std::int64_t rank = (spread > largest * kLeastImportance).sum().item<std::int64_t>();
  if (options.max_rank > 0) rank = std::min(rank, options.max_rank);
  const at::Tensor kept = order.slice(0, 0, rank);
  const at::Tensor weighted = projected.index_select(0, kept) / s.index_select(0, kept);
  std::vector<at::Tensor> decoders;  // [q, rank] each
  for (std::int64_t column = 0; const at::Tensor& inverse : inverse_weights) {
    const std::int64_t end = column + inverse.size(0);
    decoders.push_back(at::mm(weighted.slice(1, column, end), inverse).t());
    column = end;
  }

  LinearCode code;
  code.encoder = ToMatrix(a.index_select(0, kept));
  code.decoder = ToMatrix(at::cat(decoders, 0));
  code.importance = ToMatrix(spread.index_select(0, kept).unsqueeze(0)).values;
  return code;
}

LinearCode FitLinearCode(const Moments& moments, const Matrix& metric, const Matrix& prior,
                         const RegressionOptions& options) {
  return FitLinearCode({RegressionTarget{moments, metric, prior}}, options);
}

Matrix LeastSquares(const Moments& moments, double ridge) {
  const Roots source(WithRidge(moments, Lambda(moments, ridge)));
  return ToMatrix(at::mm(source.inverse, at::mm(source.inverse, View(moments.cross))));
}

double RelativeError(const Moments& moments, const Matrix& metric, const LinearCode& code,
                     std::int64_t rank, const std::vector<double>& offset) {
  const at::Tensor w = View(metric);
  const at::Tensor map = at::mm(View(code.encoder).slice(0, 0, rank).t(),
                                View(code.decoder).slice(1, 0, rank).t());  // [p, q]
  const at::Tensor cross = at::mm(map.t(), View(moments.cross));            // [q, q]
  const at::Tensor decoded = at::mm(map.t(), at::mm(View(moments.source), map));
  const at::Tensor target = View(moments.target);
  Matrix shift(1, static_cast<std::int64_t>(offset.size()));
  for (std::size_t i = 0; i < offset.size(); ++i) {
    shift.values[i] = offset[i] - moments.target_mean[i];
  }
  const at::Tensor d = View(shift);
  const at::Tensor error = target - cross - cross.t() + decoded + at::mm(d.t(), d);
  const double all = (target * w).sum().item<double>();
  return all > 0 ? (error * w).sum().item<double>() / all : 0;
}

}  // namespace baton
