// The choice among candidates of a code that one consumer has, or several have in common.
//
// What counts is the mean over consumers of a candidate's KL in parts of what uncoded K/V of the
// producer cost that consumer: none decides because it has drifted farther than the others. Of one
// consumer that is the lowest KL.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace baton {

// What one consumer makes of the producer's own K/V, and of each candidate; nats a predicted token.
struct ConsumerKl {
  double uncoded = 0;
  std::vector<double> candidates;
};

// A consumer whose uncoded K/V cost less is counted as if they cost this much: parts of next to
// nothing say nothing.
inline constexpr double kLeastUncodedKl = 0.01;

// The candidate that is best for all consumers, the first of equal ones. At least one of each.
std::size_t BestForAll(absl::Span<const ConsumerKl> consumers);

struct SharedChoice {
  // Candidates of one encoder, in their order, with the mean that they reach when each consumer
  // has the one of them that is best for it.
  struct Encoder {
    std::vector<std::size_t> candidates;
    double relative_kl = 0;
  };
  std::vector<Encoder> encoders;    // in the order of their first candidates
  std::size_t encoder = 0;          // the one that is chosen
  std::vector<std::size_t> chosen;  // candidate of each consumer, all of that encoder
};

// `encoders`: of each candidate, what names its encoder. `among`: candidates that may be chosen, in
// their order, at least one; others are in none of the encoders.
SharedChoice ChooseShared(absl::Span<const ConsumerKl> consumers,
                          absl::Span<const std::string> encoders,
                          absl::Span<const std::size_t> among);

}  // namespace baton
