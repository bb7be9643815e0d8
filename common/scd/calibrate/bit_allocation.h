// How many bits each component of a code is worth: one reverse water-filling over the components of
// all layers (T. Cover and J. Thomas, "Elements of Information Theory", 10.3.3; for real quantisers
// Y. Shoham and A. Gersho, "Efficient bit allocation for an arbitrary set of quantizers", 1988).
//
// A component's choices are points (bits, error); only those on its lower convex hull are ever
// chosen. Steps along all hulls are taken in order of error saved per bit while they fit, which is
// the Lagrangian solution at every multiplier it passes, and fills what is left of the budget.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace baton {

// What a component may get; 0: it does not travel.
inline constexpr std::array<std::uint8_t, 7> kBitChoices = {0, 1, 2, 3, 4, 6, 8};

// Weighted error of a component at each of kBitChoices; the first is that of leaving it out.
using BitErrors = std::array<double, kBitChoices.size()>;

// Bits of each component, in all at most `budget_bits`.
std::vector<std::uint8_t> AllocateBits(absl::Span<const BitErrors> components,
                                       std::int64_t budget_bits);

// The plain way, for comparison: `bits`, one of kBitChoices above 0, for each of the components
// that lose most without it, as many as fit.
std::vector<std::uint8_t> AllocateEqualBits(absl::Span<const BitErrors> components,
                                            std::uint8_t bits, std::int64_t budget_bits);

}  // namespace baton
