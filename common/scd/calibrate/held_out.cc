#include "common/scd/calibrate/held_out.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <utility>

#include "common/base/status_macros.h"
#include "common/model/single_sequence.h"
#include "common/scd/calibrate/statistics.h"
#include "kernels/elementwise.h"
#include "kernels/sampling.h"

namespace baton {
namespace {

// Rows whose logits are compared at once.
constexpr std::int64_t kRows = 32;

struct Sums {
  double kl = 0;
  double nll = 0;
  std::int64_t same = 0;
};

// log p of every token from logits [vocab].
void LogSoftmax(const float* logits, std::int64_t vocab, double* out) {
  const double lse = LogSumExp(logits, vocab);
  for (std::int64_t i = 0; i < vocab; ++i) out[i] = logits[i] - lse;
}

class Scorer {
 public:
  Scorer(const ProbedModel& consumer, std::unique_ptr<ModelProbe> producer,
         std::vector<std::unique_ptr<SingleSequence>> sequences, absl::Span<const PrefixWay> ways,
         Executor& executor)
      : consumer_(consumer),
        producer_(std::move(producer)),
        sequences_(std::move(sequences)),
        ways_(ways),
        pass_(consumer.model, consumer.adapters, executor),
        executor_(executor) {}

  // Sums over the predicted tokens of one document: the reference, then each way.
  std::vector<Sums> Score(const Document& document, const DocumentCut& cut) {
    for (const auto& sequence : sequences_) sequence->Rewind();
    const absl::Span<const std::int32_t> tokens(document.tokens);
    Run(tokens.subspan(0, static_cast<std::size_t>(cut.prefix)), 0, *sequences_[0]);
    for (std::size_t w = 1; w < sequences_.size(); ++w) {
      Run(tokens.subspan(0, kSinkRows), 0, *sequences_[w]);
    }
    HandOver(tokens.subspan(0, static_cast<std::size_t>(cut.prefix)));
    return Compare(tokens, cut);
  }

 private:
  const ModelConfig& config() const { return consumer_.model->config(); }

  // Hidden states of the rows [n, hidden], the pass's own.
  float* Run(absl::Span<const std::int32_t> tokens, std::int32_t first, SingleSequence& sequence) {
    std::vector<std::int32_t> positions(tokens.size());
    std::iota(positions.begin(), positions.end(), first);
    const SequenceSlice slice{0, static_cast<std::int32_t>(tokens.size()), &sequence.view(),
                              consumer_.adapter};
    float* h = pass_.Embed({tokens.data(), tokens.size()});
    pass_.RunLayers(0, static_cast<int>(config().layers), h,
                    {.positions = positions, .sequences = {&slice, 1}}, nullptr);
    return h;
  }

  // The prefix's rows after the sinks, by each way, into its sequence.
  void HandOver(absl::Span<const std::int32_t> prefix) {
    const auto rows = static_cast<std::int64_t>(prefix.size());
    const std::int64_t kv_dim = config().kv_heads * config().head_dim;
    std::vector<std::int32_t> positions(static_cast<std::size_t>(rows - kSinkRows));
    std::iota(positions.begin(), positions.end(), kSinkRows);
    std::vector<float> decoded(static_cast<std::size_t>(rows * 2 * kv_dim));
    const float* first = decoded.data() + kSinkRows * 2 * kv_dim;
    producer_->Start(prefix);
    for (int layer = 0; layer < static_cast<int>(config().layers); ++layer) {
      const LayerStates& states = producer_->RunLayer(layer);
      const ProducerRows given{
          .layer = layer, .rows = rows, .hidden = states.hidden.data(), .kv = states.kv.data()};
      for (std::size_t w = 0; w < ways_.size(); ++w) {
        ways_[w].decode(given, decoded.data());
        sequences_[w + 1]->view().Append(
            layer, {.k = first,
                    .ldk = 2 * kv_dim,
                    .v = first + kv_dim,
                    .ldv = 2 * kv_dim,
                    .positions = std::span(positions).first(positions.size() - Seam(w, rows))});
      }
    }
    for (std::size_t w = 0; w < ways_.size(); ++w) {
      const std::size_t first = prefix.size() - Seam(w, rows);
      if (first == prefix.size()) continue;
      Run(prefix.subspan(first), static_cast<std::int32_t>(first), *sequences_[w + 1]);
    }
  }

  // Rows that way `w` leaves to the consumer; the first are its own in any case.
  std::size_t Seam(std::size_t w, std::int64_t prefix) const {
    return static_cast<std::size_t>(std::clamp<std::int64_t>(ways_[w].seam, 0, prefix - kSinkRows));
  }

  std::vector<Sums> Compare(absl::Span<const std::int32_t> tokens, const DocumentCut& cut) {
    const auto run = tokens.subspan(static_cast<std::size_t>(cut.prefix),
                                    static_cast<std::size_t>(cut.continuation));
    const std::int64_t d = config().hidden;
    std::vector<std::vector<float>> hidden;
    for (const auto& sequence : sequences_) {
      const float* h = Run(run, cut.prefix, *sequence);
      hidden.emplace_back(h, h + cut.continuation * d);
    }
    std::vector<Sums> sums(sequences_.size());
    for (std::int32_t begin = 0; begin < cut.continuation; begin += kRows) {
      const std::int32_t end = std::min<std::int32_t>(cut.continuation, begin + kRows);
      CompareRows(hidden, begin, tokens.data() + cut.prefix + 1, end, sums);
    }
    return sums;
  }

  // targets[r] follows row r.
  void CompareRows(const std::vector<std::vector<float>>& hidden, std::int32_t begin,
                   const std::int32_t* targets, std::int32_t end, std::vector<Sums>& sums) {
    const std::int64_t vocab = config().vocab;
    std::vector<std::int32_t> rows(static_cast<std::size_t>(end - begin));
    std::iota(rows.begin(), rows.end(), begin);
    const auto count = static_cast<std::int64_t>(rows.size());
    reference_.resize(static_cast<std::size_t>(count * vocab));
    std::vector<Sums> each(rows.size());
    for (std::size_t w = 0; w < hidden.size(); ++w) {
      const float* logits = pass_.Logits(hidden[w].data(), rows);
      executor_.ParallelFor(count, 1, [&](std::int64_t b, std::int64_t e) {
        for (std::int64_t r = b; r < e; ++r) {
          const float* row = logits + r * vocab;
          double* reference = reference_.data() + r * vocab;
          if (w == 0) LogSoftmax(row, vocab, reference);
          each[static_cast<std::size_t>(r)] = CompareRow(row, reference, targets[begin + r], vocab);
        }
      });
      // In order, so that the number of threads changes nothing.
      for (const Sums& s : each) {
        sums[w].kl += s.kl;
        sums[w].nll += s.nll;
        sums[w].same += s.same;
      }
    }
  }

  static Sums CompareRow(const float* logits, const double* reference, std::int32_t target,
                         std::int64_t vocab) {
    const double lse = LogSumExp(logits, vocab);
    double kl = 0;
    for (std::int64_t i = 0; i < vocab; ++i) {
      kl += std::exp(reference[i]) * (reference[i] - (logits[i] - lse));
    }
    const auto likeliest = std::max_element(reference, reference + vocab) - reference;
    return {.kl = kl, .nll = lse - logits[target], .same = ArgMax(logits, vocab) == likeliest};
  }

  const ProbedModel consumer_;
  const std::unique_ptr<ModelProbe> producer_;
  const std::vector<std::unique_ptr<SingleSequence>> sequences_;  // reference, then each way
  const absl::Span<const PrefixWay> ways_;
  ForwardPass pass_;
  Executor& executor_;
  std::vector<double> reference_;  // log p [rows, vocab]
};

// Of sum(values) / sum(weights), documents being independent.
double RatioError(const std::vector<double>& values, const std::vector<double>& weights) {
  const auto n = static_cast<double>(values.size());
  if (values.size() < 2) return 0;
  const double all = std::accumulate(weights.begin(), weights.end(), 0.0);
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / all;
  double squares = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const double d = values[i] - mean * weights[i];
    squares += d * d;
  }
  return std::sqrt(squares * n / (n - 1)) / all;
}

}  // namespace

absl::StatusOr<HeldOutScores> ScoreHeldOut(const ProbedModel& producer, const ProbedModel& consumer,
                                           absl::Span<const Document* const> documents,
                                           absl::Span<const PrefixWay> ways,
                                           const HeldOutOptions& options, Executor& executor) {
  const std::int32_t most = options.prefix + options.continuation;
  BATON_ASSIGN_OR_RETURN(auto probe, ModelProbe::Create(producer, most, executor));
  std::vector<std::unique_ptr<SingleSequence>> sequences;
  for (std::size_t w = 0; w <= ways.size(); ++w) {
    BATON_ASSIGN_OR_RETURN(auto sequence,
                           SingleSequence::Create(consumer.model->config(), DType::kF32, most));
    sequences.push_back(std::move(sequence));
  }
  Scorer scorer(consumer, std::move(probe), std::move(sequences), ways, executor);

  std::vector<double> weights;
  std::vector<std::vector<double>> kl(ways.size() + 1);
  std::vector<Sums> total(ways.size() + 1);
  for (const Document* document : documents) {
    const DocumentCut cut(*document, options.prefix, options.continuation);
    const std::vector<Sums> sums = scorer.Score(*document, cut);
    weights.push_back(cut.continuation);
    for (std::size_t w = 0; w < sums.size(); ++w) {
      kl[w].push_back(sums[w].kl);
      total[w].kl += sums[w].kl;
      total[w].nll += sums[w].nll;
      total[w].same += sums[w].same;
    }
    if (options.progress) {
      options.progress("judging on held-out documents", static_cast<std::int64_t>(weights.size()),
                       static_cast<std::int64_t>(documents.size()));
    }
  }
  const double tokens = std::accumulate(weights.begin(), weights.end(), 0.0);
  HeldOutScores scores;
  scores.documents = static_cast<std::int64_t>(documents.size());
  scores.tokens = static_cast<std::int64_t>(tokens);
  scores.reference_nll = total[0].nll / tokens;
  for (std::size_t w = 0; w < ways.size(); ++w) {
    const Sums& s = total[w + 1];
    scores.ways.push_back({.name = ways[w].name,
                           .kl = s.kl / tokens,
                           .kl_error = RatioError(kl[w + 1], weights),
                           .nll = s.nll / tokens,
                           .top1 = static_cast<double>(s.same) / tokens});
  }
  return scores;
}

}  // namespace baton
