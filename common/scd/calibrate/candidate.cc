#include "common/scd/calibrate/candidate.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <limits>
#include <utility>

#include "common/base/mutex.h"
#include "common/scd/calibrate/bit_allocation.h"
#include "common/scd/calibrate/quantiser.h"
#include "common/scd/calibrate/tensors.h"

namespace baton {
namespace {

// The producer's own map is exact where it is linear: just enough to solve for it.
constexpr double kPriorRidge = 1e-9;

// Levels of one component at each of kBitChoices (none at 0 bits).
using Levels = std::array<std::vector<float>, kBitChoices.size()>;

// What codes become at one target.
struct Decoding {
  Matrix decoder;              // [q, rank]
  std::vector<double> offset;  // [q]
};

struct FittedLayer {
  LinearCode code;                  // but for its decoder, which is here:
  std::vector<Decoding> decodings;  // of each target: the consumers, or one for all of them
  std::vector<double> source_mean;
  std::vector<Levels> levels;     // [rank]
  std::vector<BitErrors> errors;  // [rank]

  const Decoding& For(std::size_t consumer) const {
    return decodings[decodings.size() == 1 ? 0 : consumer];
  }
};

// The sample's components, each sorted: [rank, rows].
at::Tensor SortedComponents(const LinearCode& code, const std::vector<double>& mean,
                            const RowReservoir& sample) {
  const auto p = static_cast<std::int64_t>(mean.size());
  Matrix m(1, p);
  m.values = mean;
  const at::Tensor x = ToDouble(sample.values().data(), sample.size(), p) - View(m);
  const at::Tensor z = at::mm(View(code.encoder), x.t()).to(at::kFloat);
  return std::get<0>(z.sort(/*dim=*/1)).contiguous();
}

void FitQuantisers(const RowReservoir& sample, FittedLayer& layer) {
  const at::Tensor sorted = SortedComponents(layer.code, layer.source_mean, sample);
  const auto rank = static_cast<std::size_t>(layer.code.rank());
  const auto rows = static_cast<std::size_t>(sample.size());
  layer.levels.resize(rank);
  layer.errors.resize(rank);
  for (std::size_t i = 0; i < rank; ++i) {
    const absl::Span<const float> z(sorted.data_ptr<float>() + i * rows, rows);
    const double variance = std::max(Distortion(z, {0.0f}), 1e-300);
    layer.errors[i][0] = layer.code.importance[i];
    for (std::size_t b = 1; b < kBitChoices.size(); ++b) {
      layer.levels[i][b] = MakeLevels(z, kBitChoices[b]);
      layer.errors[i][b] = layer.code.importance[i] * Distortion(z, layer.levels[i][b]) / variance;
    }
  }
}

// The decoders of a code of several targets, each with the mean of what it decodes to.
std::vector<Decoding> Split(const Matrix& decoder, absl::Span<const RegressionTarget> targets) {
  std::vector<Decoding> decodings;
  for (auto row = decoder.values.begin(); const RegressionTarget& target : targets) {
    const std::vector<double>& mean = target.moments.target_mean;
    Matrix part(static_cast<std::int64_t>(mean.size()), decoder.cols);
    std::copy_n(row, part.values.size(), part.values.begin());
    row += static_cast<std::ptrdiff_t>(part.values.size());
    decodings.push_back({std::move(part), mean});
  }
  return decodings;
}

FittedLayer FitLayer(const CandidateSpec& spec, const CalibrationStatistics& statistics,
                     const TargetMetrics& metrics, std::size_t l) {
  const Moments own = statistics.Producer(l);
  const Matrix prior = LeastSquares(own, kPriorRidge);
  std::vector<Moments> moments;  // of the consumers
  std::vector<RegressionTarget> targets;
  if (spec.target == CodeTarget::kProducer) {
    // The target is what the prior says.
    targets.push_back({own, metrics.producer[l], prior});
  } else {
    moments.reserve(statistics.consumers);  // targets refer to them
    for (std::size_t c = 0; c < statistics.consumers; ++c) {
      moments.push_back(statistics.Consumer(l, c));
      targets.push_back({moments.back(), metrics.consumers[c][l], prior});
    }
  }
  FittedLayer fitted;
  fitted.code = spec.separate ? FitSeparateCode(targets.front().moments, targets.front().metric,
                                                prior, spec.regression, *spec.separate)
                              : FitLinearCode(targets, spec.regression);
  fitted.decodings = Split(fitted.code.decoder, targets);
  fitted.code.decoder = {};
  fitted.source_mean = own.source_mean;
  FitQuantisers(statistics.layers[l].sample, fitted);
  return fitted;
}

std::vector<float> ToFloat(const std::vector<double>& values) {
  return {values.begin(), values.end()};
}

// The components that got bits, in their order, as one consumer decodes them.
CodecLayer Keep(const FittedLayer& fitted, std::size_t consumer, const std::uint8_t* bits) {
  const LinearCode& code = fitted.code;
  const Decoding& decoding = fitted.For(consumer);
  CodecLayer layer;
  layer.mean = ToFloat(fitted.source_mean);
  layer.offset = ToFloat(decoding.offset);
  std::vector<std::int64_t> kept;
  for (std::int64_t i = 0; i < code.rank(); ++i) {
    if (bits[i] == 0) continue;
    kept.push_back(i);
    const auto at = static_cast<std::size_t>(i);
    const auto choice = static_cast<std::size_t>(
        std::find(kBitChoices.begin(), kBitChoices.end(), bits[i]) - kBitChoices.begin());
    layer.bits.push_back(bits[i]);
    layer.importance.push_back(static_cast<float>(code.importance[at]));
    const std::vector<float>& levels = fitted.levels[at][choice];
    layer.levels.insert(layer.levels.end(), levels.begin(), levels.end());
    for (std::int64_t c = 0; c < code.encoder.cols; ++c) {
      layer.encoder.push_back(static_cast<float>(code.encoder.at(i, c)));
    }
  }
  for (std::int64_t row = 0; row < decoding.decoder.rows; ++row) {
    for (const std::int64_t i : kept) {
      layer.decoder.push_back(static_cast<float>(decoding.decoder.at(row, i)));
    }
  }
  return layer;
}

// Of the code with the bits it got. Quantisation errors are uncorrelated with what is decoded and
// with each other, as far as levels are means of their cells.
double ErrorOf(const FittedLayer& fitted, std::size_t consumer, const std::uint8_t* bits,
               const Moments& moments, const Matrix& metric) {
  const Decoding& decoding = fitted.For(consumer);
  LinearCode kept = {fitted.code.encoder, decoding.decoder, fitted.code.importance};
  double quantised = 0;
  for (std::int64_t i = 0; i < kept.rank(); ++i) {
    if (bits[i] == 0) {
      for (std::int64_t r = 0; r < kept.decoder.rows; ++r) kept.decoder.at(r, i) = 0;
      continue;
    }
    const auto choice = static_cast<std::size_t>(
        std::find(kBitChoices.begin(), kBitChoices.end(), bits[i]) - kBitChoices.begin());
    const at::Tensor b = View(kept.decoder).select(1, i);
    const double loud = b.dot(at::mv(View(metric), b)).item<double>();
    quantised += fitted.errors[static_cast<std::size_t>(i)][choice] * loud;
  }
  const double all = (View(moments.target) * View(metric)).sum().item<double>();
  const double linear = RelativeError(moments, metric, kept, kept.rank(), decoding.offset);
  return linear + (all > 0 ? quantised / all : 0);
}

}  // namespace

CodecLayer QuantisedLayer(const LinearCode& code, const std::vector<double>& mean,
                          const std::vector<double>& offset, const RowReservoir& sample,
                          std::int64_t budget_bits) {
  FittedLayer fitted;
  fitted.code = code;
  fitted.decodings = {{code.decoder, offset}};
  fitted.source_mean = mean;
  FitQuantisers(sample, fitted);
  fitted.errors[0][0] = std::numeric_limits<double>::max();
  return Keep(fitted, 0, AllocateBits(fitted.errors, budget_bits).data());
}

std::vector<Candidate> MakeCandidates(const CandidateSpec& spec,
                                      const CalibrationStatistics& statistics,
                                      const TargetMetrics& metrics, std::int64_t budget_bits,
                                      const CalibrationProgress& progress, Executor& executor) {
  const auto layers = static_cast<std::int64_t>(statistics.layers.size());
  std::vector<FittedLayer> fitted(statistics.layers.size());
  Mutex mu;
  std::int64_t done = 0;
  ForEach(executor, layers, [&](std::int64_t l) {
    const auto at = static_cast<std::size_t>(l);
    fitted[at] = FitLayer(spec, statistics, metrics, at);
    MutexLock lock(mu);
    if (progress) progress("fitting " + spec.name, ++done, layers);
  });
  std::vector<BitErrors> errors;
  for (FittedLayer& layer : fitted) {
    // A codec has a component in every layer.
    layer.errors[0][0] = std::numeric_limits<double>::max();
    errors.insert(errors.end(), layer.errors.begin(), layer.errors.end());
  }
  const std::vector<std::uint8_t> bits =
      spec.component_bits == 0 ? AllocateBits(errors, budget_bits)
                               : AllocateEqualBits(errors, spec.component_bits, budget_bits);
  std::vector<const std::uint8_t*> bits_of_layer;
  for (const std::uint8_t* at = bits.data(); const FittedLayer& layer : fitted) {
    bits_of_layer.push_back(at);
    at += layer.code.rank();
  }
  std::vector<Candidate> candidates(statistics.consumers);
  for (std::size_t c = 0; c < candidates.size(); ++c) {
    Candidate& candidate = candidates[c];
    candidate.spec = spec;
    candidate.layers.resize(fitted.size());
    candidate.relative_error.resize(fitted.size());
    ForEach(executor, layers, [&](std::int64_t l) {
      const auto at = static_cast<std::size_t>(l);
      candidate.layers[at] = Keep(fitted[at], c, bits_of_layer[at]);
      candidate.relative_error[at] = ErrorOf(fitted[at], c, bits_of_layer[at],
                                             statistics.Consumer(at, c), metrics.consumers[c][at]);
    });
  }
  return candidates;
}

}  // namespace baton
