#include "common/scd/calibrate/metric.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/model/model_weights.h"
#include "common/scd/calibrate/tensors.h"

namespace baton {
namespace {

constexpr int kDistances = 64;

// W_O [hidden, heads * head_dim], the adapter's part included.
at::Tensor OutputProjection(const ProbedModel& of, int layer) {
  const auto at = static_cast<std::size_t>(layer);
  const LoraDelta* delta =
      of.adapter == kNoAdapter ? nullptr : &of.adapters->packed(of.adapter).layers[at].o;
  return Unpack(of.model->weights().layers[at].o, delta).to(at::kDouble);
}

// The rotation by `distance` positions of a column [head_dim], as a matrix: HF's half-split form.
at::Tensor Rotation(const std::vector<float>& inv_freq, double distance) {
  const auto half = static_cast<std::int64_t>(inv_freq.size());
  Matrix r(2 * half, 2 * half);
  for (std::int64_t i = 0; i < half; ++i) {
    const double angle = distance * static_cast<double>(inv_freq[static_cast<std::size_t>(i)]);
    r.at(i, i) = r.at(i + half, i + half) = std::cos(angle);
    r.at(i, i + half) = -std::sin(angle);
    r.at(i + half, i) = std::sin(angle);
  }
  return View(r).clone();
}

// Mean over distances of R m R^T: a query seen from the rows before it.
at::Tensor OverDistances(const at::Tensor& m, const std::vector<at::Tensor>& rotations) {
  at::Tensor sum = at::zeros_like(m);
  for (const at::Tensor& r : rotations) sum.add_(at::mm(at::mm(r, m), r.t()));
  return sum / static_cast<double>(rotations.size());
}

}  // namespace

const char* MetricName(Metric metric) {
  switch (metric) {
    case Metric::kIdentity:
      return "identity";
    case Metric::kHeuristic:
      return "heuristic";
    case Metric::kFisher:
      return "fisher";
  }
  return "unknown";
}

QuerySums::QuerySums(std::int64_t heads, std::int64_t head_dim)
    : heads_(heads), head_dim_(head_dim), moment_(heads * head_dim, head_dim) {}

void QuerySums::Add(const LayerStates& states, std::int64_t begin) {
  const std::int64_t rows = states.rows - begin;
  if (rows <= 0) return;
  const std::int64_t width = heads_ * head_dim_;
  const at::Tensor q = ToDouble(states.queries.data() + begin * width, rows, width)
                           .view({rows, heads_, head_dim_})
                           .permute({1, 0, 2});
  View(moment_).view({heads_, head_dim_, head_dim_}).baddbmm_(q.transpose(1, 2), q);
  rows_ += rows;
  energy_ = std::accumulate(states.energy.begin() + begin, states.energy.end(), energy_);
}

Matrix QuerySums::Moment() const {
  Matrix m = moment_;
  for (double& x : m.values) x /= static_cast<double>(std::max<std::int64_t>(1, rows_));
  return m;
}

double QuerySums::Energy() const {
  return energy_ / static_cast<double>(std::max<std::int64_t>(1, rows_));
}

Matrix HeuristicMetric(const ProbedModel& model, int layer, const QuerySums& queries,
                       const Matrix& target, std::int32_t max_distance) {
  const ModelConfig& c = model.model->config();
  const std::int64_t d = c.head_dim, kv_dim = c.kv_heads * d, group = c.heads / c.kv_heads;
  std::vector<at::Tensor> rotations;
  rotations.reserve(kDistances);
  for (int i = 0; i < kDistances; ++i) {
    rotations.push_back(
        Rotation(model.model->weights().inv_freq, (i + 0.5) * max_distance / kDistances));
  }
  const at::Tensor output = OutputProjection(model, layer);
  const Matrix moment = queries.Moment();
  const at::Tensor covariance = View(target);
  // Scores are of rotated q and k, each scaled.
  const double scores = std::pow(c.rope.attention_factor, 4) / static_cast<double>(d);

  Matrix metric(2 * kv_dim, 2 * kv_dim);
  const at::Tensor w = View(metric);
  for (std::int64_t h = 0; h < c.heads; ++h) {
    const std::int64_t k = h / group * d, v = kv_dim + k;
    const at::Tensor o = output.slice(1, h * d, (h + 1) * d);
    const at::Tensor m = at::mm(o.t(), o);
    const double spread =
        (m * covariance.slice(0, v, v + d).slice(1, v, v + d)).sum().item<double>();
    const at::Tensor q = View(moment).slice(0, h * d, (h + 1) * d);
    w.slice(0, v, v + d).slice(1, v, v + d).add_(m);
    w.slice(0, k, k + d).slice(1, k, k + d).add_(OverDistances(q, rotations), spread * scores);
  }
  for (const std::int64_t begin : {std::int64_t{0}, kv_dim}) {
    const at::Tensor diagonal = w.diagonal().slice(0, begin, begin + kv_dim);
    diagonal.add_(std::max(kMetricFloor * diagonal.mean().item<double>(), 1e-30));
  }
  w.div_(std::max(queries.Energy(), 1e-30));
  return metric;
}

}  // namespace baton
