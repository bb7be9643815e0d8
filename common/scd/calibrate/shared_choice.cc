#include "common/scd/calibrate/shared_choice.h"

#include <algorithm>

namespace baton {
namespace {

double Relative(const ConsumerKl& consumer, std::size_t candidate) {
  return consumer.candidates[candidate] / std::max(consumer.uncoded, kLeastUncodedKl);
}

// Candidates by encoder, in the order of their first ones.
std::vector<SharedChoice::Encoder> ByEncoder(absl::Span<const std::string> encoders,
                                             absl::Span<const std::size_t> among) {
  std::vector<SharedChoice::Encoder> groups;
  for (const std::size_t i : among) {
    const auto same =
        std::find_if(groups.begin(), groups.end(), [&](const SharedChoice::Encoder& g) {
          return encoders[g.candidates.front()] == encoders[i];
        });
    SharedChoice::Encoder& to = same == groups.end() ? groups.emplace_back() : *same;
    to.candidates.push_back(i);
  }
  return groups;
}

std::size_t Best(const ConsumerKl& consumer, const std::vector<std::size_t>& candidates) {
  return *std::min_element(candidates.begin(), candidates.end(), [&](std::size_t a, std::size_t b) {
    return consumer.candidates[a] < consumer.candidates[b];
  });
}

}  // namespace

std::size_t BestForAll(absl::Span<const ConsumerKl> consumers) {
  std::vector<double> sums(consumers.front().candidates.size());
  for (const ConsumerKl& consumer : consumers) {
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += Relative(consumer, i);
  }
  return static_cast<std::size_t>(std::min_element(sums.begin(), sums.end()) - sums.begin());
}

SharedChoice ChooseShared(absl::Span<const ConsumerKl> consumers,
                          absl::Span<const std::string> encoders,
                          absl::Span<const std::size_t> among) {
  SharedChoice choice;
  choice.encoders = ByEncoder(encoders, among);
  for (SharedChoice::Encoder& e : choice.encoders) {
    for (const ConsumerKl& consumer : consumers) {
      e.relative_kl += Relative(consumer, Best(consumer, e.candidates));
    }
    e.relative_kl /= static_cast<double>(consumers.size());
  }
  for (std::size_t e = 1; e < choice.encoders.size(); ++e) {
    if (choice.encoders[e].relative_kl < choice.encoders[choice.encoder].relative_kl) {
      choice.encoder = e;
    }
  }
  for (const ConsumerKl& consumer : consumers) {
    choice.chosen.push_back(Best(consumer, choice.encoders[choice.encoder].candidates));
  }
  return choice;
}

}  // namespace baton
