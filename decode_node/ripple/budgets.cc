#include "decode_node/ripple/budgets.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace baton {
namespace {

constexpr double kSmallestWeight = 1e-12;
constexpr int kBisections = 200;
constexpr std::int64_t kMaxTokens = std::int64_t{1} << 40;
constexpr std::int64_t kMaxLayers = 1 << 16;

absl::Status CheckAtLeast(const char* field, double value, double low) {
  if (value >= low && std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(Cat(field, ": ", value, " is below ", low, " or not finite"));
}

absl::Status CheckTokens(const char* field, std::int64_t value) {
  if (value >= 1 && value <= kMaxTokens) return absl::OkStatus();
  return absl::InvalidArgumentError(Cat(field, ": ", value, " is outside [1, ", kMaxTokens, "]"));
}

absl::Status CheckLayers(std::int64_t layers) {
  if (layers >= 1 && layers <= kMaxLayers) return absl::OkStatus();
  return absl::InvalidArgumentError(Cat("layers: ", layers, " is outside [1, ", kMaxLayers, "]"));
}

absl::Status CheckValues(const char* field, absl::Span<const double> values) {
  BATON_RETURN_IF_ERROR(CheckLayers(static_cast<std::int64_t>(values.size())));
  for (const double v : values) BATON_RETURN_IF_ERROR(CheckAtLeast(field, v, 0));
  return absl::OkStatus();
}

LayerBudgets Total(std::vector<std::int64_t> tokens) {
  LayerBudgets out{std::move(tokens), 0};
  out.total = std::accumulate(out.tokens.begin(), out.tokens.end(), std::int64_t{0});
  return out;
}

// Real-valued budgets that sum to at most `total`, as close below it as doubles allow.
std::vector<double> Bisect(const std::vector<double>& weights, double low, double high,
                           double total) {
  std::vector<double> budgets(weights.size());
  const auto fill = [&](double lambda) {
    double sum = 0;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      budgets[i] = std::clamp(lambda * weights[i], low, high);
      sum += budgets[i];
    }
    return sum;
  };
  double below = 0;
  double above = high / kSmallestWeight;
  for (int i = 0; i < kBisections; ++i) {
    const double middle = below + (above - below) / 2;
    (fill(middle) <= total ? below : above) = middle;
  }
  fill(below);
  return budgets;
}

std::vector<std::int64_t> RoundTo(const std::vector<double>& budgets, std::int64_t high,
                                  std::int64_t total) {
  std::vector<std::int64_t> rounded(budgets.size());
  std::transform(budgets.begin(), budgets.end(), rounded.begin(),
                 [](double b) { return static_cast<std::int64_t>(std::floor(b)); });
  std::vector<std::size_t> order(budgets.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    return budgets[a] - std::floor(budgets[a]) > budgets[b] - std::floor(budgets[b]);
  });
  std::int64_t rest = total - std::accumulate(rounded.begin(), rounded.end(), std::int64_t{0});
  while (rest > 0) {  // once, but for what bisection left over
    for (const std::size_t i : order) {
      if (rest > 0 && rounded[i] < high) {
        ++rounded[i];
        --rest;
      }
    }
  }
  return rounded;
}

}  // namespace

absl::StatusOr<LayerBudgets> WeightedBudgets(absl::Span<const double> weights,
                                             const BudgetLimits& limits) {
  BATON_RETURN_IF_ERROR(CheckValues("weight", weights));
  BATON_RETURN_IF_ERROR(CheckTokens("total", limits.total));
  BATON_RETURN_IF_ERROR(CheckTokens("context", limits.context));
  BATON_RETURN_IF_ERROR(CheckTokens("min_layer", limits.min_layer));
  BATON_RETURN_IF_ERROR(CheckTokens("page_tokens", limits.page_tokens));
  const auto layers = static_cast<std::int64_t>(weights.size());
  if (limits.total / layers >= limits.context) {
    return Total(std::vector<std::int64_t>(weights.size(), limits.context));
  }
  const std::int64_t page = limits.page_tokens;
  const std::int64_t high = (limits.context + page - 1) / page;
  const std::int64_t low = (std::min(limits.min_layer, limits.context) + page - 1) / page;
  const std::int64_t total = limits.total / page;
  if (total < layers * low) {
    return absl::InvalidArgumentError(
        Cat("total: ", limits.total, " tokens are too few for ", layers, " layers of at least ",
            low * page, "; the smallest feasible total is ", layers * low * page));
  }
  const double largest = *std::max_element(weights.begin(), weights.end());
  std::vector<double> relative(weights.size(), 1.0);
  if (largest > 0) {
    std::transform(weights.begin(), weights.end(), relative.begin(),
                   [&](double w) { return std::max(w / largest, kSmallestWeight); });
  }
  std::vector<std::int64_t> pages =
      RoundTo(Bisect(relative, static_cast<double>(low), static_cast<double>(high),
                     static_cast<double>(total)),
              high, total);
  for (std::int64_t& p : pages) p *= page;
  return Total(std::move(pages));
}

absl::StatusOr<LayerBudgets> UniformBudgets(int layers, const BudgetLimits& limits) {
  BATON_RETURN_IF_ERROR(CheckLayers(layers));
  return WeightedBudgets(std::vector<double>(static_cast<std::size_t>(layers), 1.0), limits);
}

absl::StatusOr<LayerBudgets> PyramidBudgets(int layers, double beta, const BudgetLimits& limits) {
  BATON_RETURN_IF_ERROR(CheckLayers(layers));
  BATON_RETURN_IF_ERROR(CheckAtLeast("beta", beta, 1));
  std::vector<double> weights(static_cast<std::size_t>(layers), 1.0);
  const double last = 1 / beta;
  for (int i = 0; layers > 1 && i < layers; ++i) {
    weights[static_cast<std::size_t>(i)] = (2 - last) - i * (2 - 2 * last) / (layers - 1);
  }
  return WeightedBudgets(weights, limits);
}

absl::StatusOr<LayerBudgets> PyramidPublished(int layers, std::int64_t context,
                                              const PyramidOptions& options) {
  BATON_RETURN_IF_ERROR(CheckLayers(layers));
  BATON_RETURN_IF_ERROR(CheckTokens("context", context));
  BATON_RETURN_IF_ERROR(CheckTokens("capacity", options.capacity));
  BATON_RETURN_IF_ERROR(CheckTokens("window", options.window));
  BATON_RETURN_IF_ERROR(CheckTokens("beta", options.beta));
  const std::int64_t past = options.capacity - options.window;
  if (past < 1) {
    return absl::InvalidArgumentError(
        Cat("capacity: ", options.capacity, " is not over the window of ", options.window));
  }
  if (context < options.capacity || context < 2 * past) {
    return Total(std::vector<std::int64_t>(static_cast<std::size_t>(layers),
                                           std::min(context, options.capacity)));
  }
  std::int64_t least = past / options.beta;
  std::int64_t most = 2 * past - least;
  if (most >= context - options.window) {
    most = context - options.window;
    least = 2 * past - most;
  }
  const std::int64_t step = layers > 1 ? (most - least) / (layers - 1) : 0;
  std::vector<std::int64_t> tokens;
  tokens.reserve(static_cast<std::size_t>(layers));
  for (int i = 0; i < layers; ++i) tokens.push_back(most - i * step + options.window);
  return Total(std::move(tokens));
}

absl::StatusOr<std::vector<double>> RippleWeights(absl::Span<const double> sensitivities,
                                                  const RippleOptions& options) {
  BATON_RETURN_IF_ERROR(CheckValues("sensitivity", sensitivities));
  BATON_RETURN_IF_ERROR(CheckAtLeast("ratio", options.ratio.value_or(1), 1));
  BATON_RETURN_IF_ERROR(CheckAtLeast("clip", options.clip, 1));
  BATON_RETURN_IF_ERROR(CheckAtLeast("damage_exponent", options.damage_exponent, 0));
  std::vector<double> s(sensitivities.begin(), sensitivities.end());
  const double most = *std::max_element(s.begin(), s.end());
  double least_positive = most;
  for (const double v : s) {
    if (v > 0) least_positive = std::min(least_positive, v);
  }
  if (most > 0 && options.scale == SensitivityScale::kLog) {
    for (double& v : s) v = std::log(std::max(v, least_positive));
  }
  const auto [low, high] = std::minmax_element(s.begin(), s.end());
  const double base = *low;
  const double range = *high - base;
  if (range == 0) return std::vector<double>(s.size(), 1.0);
  for (double& v : s) v = (v - base) / range;
  const double log_ratio = options.ratio
                               ? std::log(*options.ratio)
                               : std::log(most / least_positive) / (1 + options.damage_exponent);
  const double centre =
      options.centred ? std::accumulate(s.begin(), s.end(), 0.0) / static_cast<double>(s.size())
                      : 0.0;
  for (double& v : s) {
    v = std::clamp(std::exp(log_ratio * (v - centre)), 1 / options.clip, options.clip);
  }
  return s;
}

}  // namespace baton
