#include "common/scd/calibrate/patch.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>

#include "common/base/mutex.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/model/model_weights.h"
#include "common/scd/calibrate/candidate.h"
#include "common/scd/calibrate/regression.h"
#include "common/scd/calibrate/tensors.h"

namespace baton {
namespace {

constexpr double kInputFloor = 1e-3;  // part of the mean cost

// The consumer's [K | V] of a normalised input, as far as it is linear: [2 * kv_dim, hidden].
at::Tensor KvMapOf(const ProbedModel& consumer, std::size_t layer, const Moments& input) {
  const Model::Weights& w = consumer.model->weights();
  const LayerWeights& l = w.layers[layer];
  const LoraDelta* delta = consumer.adapter == kNoAdapter
                               ? nullptr
                               : &consumer.adapters->packed(consumer.adapter).layers[layer].qkv;
  const at::Tensor gamma = at::tensor(at::ArrayRef<float>(l.input_norm), at::kDouble);
  at::Tensor map = Unpack(l.qkv, delta).slice(0, w.q_dim()).to(at::kDouble) * gamma;
  if (l.k_norm.empty()) return map;
  const at::Tensor norm = at::tensor(at::ArrayRef<float>(l.k_norm), at::kDouble);
  Matrix mean(1, static_cast<std::int64_t>(input.target_mean.size()));
  mean.values = input.target_mean;
  const at::Tensor second = View(input.target) + at::mm(View(mean).t(), View(mean));
  const std::int64_t d = w.config.head_dim;
  for (std::int64_t h = 0; h < w.config.kv_heads; ++h) {
    const at::Tensor k = map.slice(0, h * d, (h + 1) * d);
    const double square = (at::mm(k, second) * k).sum().item<double>() / static_cast<double>(d);
    k.mul_(norm.unsqueeze(1) / std::sqrt(std::max(square, 1e-30)));
  }
  return map;
}

std::int64_t BitsOf(const CodecLayer& layer) {
  return std::accumulate(layer.bits.begin(), layer.bits.end(), std::int64_t{0});
}

// Layers, the one with the lowest value first.
std::vector<std::size_t> InOrderOf(absl::Span<const double> values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  return order;
}

absl::Status CheckList(const std::vector<std::size_t>& layers, std::size_t count) {
  std::vector<bool> seen(count);
  for (const std::size_t layer : layers) {
    if (layer >= count || seen[layer]) {
      return absl::InvalidArgumentError(Cat("patch: layer ", layer, layer < count ? " twice" : "",
                                            "; the models have ", count, " layers"));
    }
    seen[layer] = true;
  }
  if (layers.empty()) return absl::InvalidArgumentError("patch: a list of no layers");
  return absl::OkStatus();
}

class Selector {
 public:
  Selector(std::size_t layers, const PatchOptions& options, const PatchJudge& judge)
      : layers_(layers), options_(options), judge_(judge) {}

  absl::StatusOr<PatchSelection> Run(absl::Span<const double> errors) {
    BATON_ASSIGN_OR_RETURN(const std::vector<double> base, judge_({{}}));
    s_.base_kl = base[0];
    if (options_.choice == PatchChoice::kGreedy || options_.choice == PatchChoice::kSingle) {
      BATON_ASSIGN_OR_RETURN(s_.single_kl, judge_(Singles()));
    }
    if (options_.choice == PatchChoice::kGreedy) {
      BATON_RETURN_IF_ERROR(Grow());
    } else {
      s_.order = Order(errors);
      BATON_ASSIGN_OR_RETURN(s_.curve, judge_(Beginnings()));
    }
    double best = s_.base_kl;
    for (std::size_t k = 0; k < s_.curve.size(); ++k) {
      if (s_.curve[k] >= best) continue;
      best = s_.curve[k];
      s_.count = k + 1;
    }
    if (options_.choice == PatchChoice::kList) s_.count = s_.order.size();
    return std::move(s_);
  }

 private:
  std::vector<std::vector<std::size_t>> Singles() const {
    std::vector<std::vector<std::size_t>> sets;
    for (std::size_t l = 0; l < layers_; ++l) sets.push_back({l});
    return sets;
  }

  std::vector<std::vector<std::size_t>> Beginnings() const {
    std::vector<std::vector<std::size_t>> sets;
    for (std::size_t k = 1; k <= s_.order.size(); ++k) {
      sets.emplace_back(s_.order.begin(), s_.order.begin() + static_cast<std::ptrdiff_t>(k));
    }
    return sets;
  }

  std::vector<std::size_t> Order(absl::Span<const double> errors) const {
    if (options_.choice == PatchChoice::kList) return options_.layers;
    std::vector<std::size_t> order;
    if (options_.choice == PatchChoice::kSingle) {
      order = InOrderOf(s_.single_kl);
    } else {
      order = InOrderOf(errors);
      std::reverse(order.begin(), order.end());
    }
    order.resize(std::min(order.size(), options_.most));
    return order;
  }

  absl::Status Grow() {
    std::vector<std::size_t> left = InOrderOf(s_.single_kl);
    left.erase(std::remove_if(left.begin(), left.end(),
                              [&](std::size_t l) { return s_.single_kl[l] >= s_.base_kl; }),
               left.end());
    if (left.empty() || options_.most == 0) return absl::OkStatus();
    s_.curve.push_back(s_.single_kl[left[0]]);
    s_.order.push_back(left[0]);
    left.erase(left.begin());
    while (!left.empty() && s_.order.size() < options_.most) {
      std::vector<std::vector<std::size_t>> sets;
      for (const std::size_t l : left) {
        sets.push_back(s_.order);
        sets.back().push_back(l);
      }
      BATON_ASSIGN_OR_RETURN(const std::vector<double> kl, judge_(sets));
      const auto best = std::min_element(kl.begin(), kl.end());
      if (*best >= s_.curve.back()) break;
      s_.curve.push_back(*best);
      s_.order.push_back(left[static_cast<std::size_t>(best - kl.begin())]);
      left.erase(left.begin() + (best - kl.begin()));
    }
    return absl::OkStatus();
  }

  const std::size_t layers_;
  const PatchOptions& options_;
  const PatchJudge& judge_;
  PatchSelection s_;
};

}  // namespace

const char* PatchChoiceName(PatchChoice choice) {
  switch (choice) {
    case PatchChoice::kOff:
      return "off";
    case PatchChoice::kGreedy:
      return "greedy";
    case PatchChoice::kSingle:
      return "single";
    case PatchChoice::kError:
      return "error";
    case PatchChoice::kList:
      return "list";
  }
  return "unknown";
}

Matrix InputMetric(const ProbedModel& consumer, std::size_t layer, const Matrix& metric,
                   const Moments& input) {
  const at::Tensor map = KvMapOf(consumer, layer, input);
  const at::Tensor w = at::mm(map.t(), at::mm(View(metric), map));
  w.diagonal().add_(std::max(kInputFloor * w.diagonal().mean().item<double>(), 1e-30));
  return ToMatrix(w);
}

std::vector<CodecLayer> PatchLayers(const ProbedModel& consumer,
                                    const CalibrationStatistics& statistics,
                                    const std::vector<Matrix>& metric, const Codec& base,
                                    double ridge, const CalibrationProgress& progress,
                                    Executor& executor) {
  const auto count = static_cast<std::int64_t>(base.layers.size());
  std::vector<CodecLayer> patched(base.layers.size());
  Mutex mu;
  std::int64_t done = 0;
  ForEach(executor, count, [&](std::int64_t i) {
    const auto l = static_cast<std::size_t>(i);
    const Moments moments = statistics.ConsumerInput(l);
    const LinearCode code = FitLinearCode(
        moments, InputMetric(consumer, l, metric[l], moments),
        Matrix::Identity(moments.source.rows),
        {.factorisation = Factorisation::kReducedRank, .ridge = ridge, .max_rank = kMaxCodecRank});
    patched[l] = QuantisedLayer(code, moments.source_mean, moments.target_mean,
                                statistics.layers[l].sample, BitsOf(base.layers[l]));
    patched[l].kind = LayerKind::kPatch;
    MutexLock lock(mu);
    if (progress) progress("fitting patches", ++done, count);
  });
  return patched;
}

Codec WithPatches(const Codec& base, const std::vector<CodecLayer>& patched,
                  absl::Span<const std::size_t> layers) {
  Codec codec = base;
  for (const std::size_t l : layers) codec.layers[l] = patched[l];
  return codec;
}

absl::StatusOr<PatchSelection> SelectPatches(absl::Span<const double> errors,
                                             const PatchOptions& options, const PatchJudge& judge) {
  if (options.choice == PatchChoice::kList) {
    BATON_RETURN_IF_ERROR(CheckList(options.layers, errors.size()));
  }
  return Selector(errors.size(), options, judge).Run(errors);
}

}  // namespace baton
