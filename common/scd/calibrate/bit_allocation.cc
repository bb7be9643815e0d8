#include "common/scd/calibrate/bit_allocation.h"

#include <algorithm>
#include <cstddef>
#include <numeric>

namespace baton {
namespace {

struct Step {
  std::size_t component;
  std::uint8_t from;
  std::uint8_t to;
  double gain_per_bit;
};

// Steps along the lower hull, each with less gain per bit than the one before.
void AddHullSteps(std::size_t component, const BitErrors& errors, std::vector<Step>& steps) {
  std::size_t at = 0;
  while (at + 1 < errors.size()) {
    std::size_t best = at;
    double best_gain = 0;
    for (std::size_t next = at + 1; next < errors.size(); ++next) {
      const double gain = (errors[at] - errors[next]) / (kBitChoices[next] - kBitChoices[at]);
      // The farther of two equal ones: fewer steps to the same place.
      if (gain > 0 && gain >= best_gain) {
        best = next;
        best_gain = gain;
      }
    }
    if (best == at) return;
    steps.push_back({component, kBitChoices[at], kBitChoices[best], best_gain});
    at = best;
  }
}

}  // namespace

std::vector<std::uint8_t> AllocateBits(absl::Span<const BitErrors> components,
                                       std::int64_t budget_bits) {
  std::vector<Step> steps;
  for (std::size_t i = 0; i < components.size(); ++i) AddHullSteps(i, components[i], steps);
  std::stable_sort(steps.begin(), steps.end(),
                   [](const Step& a, const Step& b) { return a.gain_per_bit > b.gain_per_bit; });
  std::vector<std::uint8_t> bits(components.size());
  std::int64_t left = budget_bits;
  for (const Step& step : steps) {
    const int cost = step.to - step.from;
    // A step that did not fit ends its component's way.
    if (bits[step.component] != step.from || cost > left) continue;
    bits[step.component] = step.to;
    left -= cost;
  }
  return bits;
}

std::vector<std::uint8_t> AllocateEqualBits(absl::Span<const BitErrors> components,
                                            std::uint8_t bits, std::int64_t budget_bits) {
  const auto choice = static_cast<std::size_t>(
      std::find(kBitChoices.begin(), kBitChoices.end(), bits) - kBitChoices.begin());
  std::vector<std::size_t> order(components.size());
  std::iota(order.begin(), order.end(), 0);
  const auto gain = [&](std::size_t i) { return components[i][0] - components[i][choice]; };
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return gain(a) > gain(b); });
  order.resize(std::min(order.size(), static_cast<std::size_t>(budget_bits / bits)));
  std::vector<std::uint8_t> given(components.size());
  for (const std::size_t i : order) given[i] = bits;
  return given;
}

}  // namespace baton
