#include "common/scd/calibrate/held_out.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <utility>

#include "common/base/status_macros.h"
#include "kernels/elementwise.h"
#include "kernels/sampling.h"

namespace baton {
namespace {

// Rows whose logits are compared at once.
constexpr std::int64_t kRows = 32;

// log p of every token from logits [vocab].
void LogSoftmax(const float* logits, std::int64_t vocab, double* out) {
  const double lse = LogSumExp(logits, vocab);
  for (std::int64_t i = 0; i < vocab; ++i) out[i] = logits[i] - lse;
}

PredictionSums CompareRow(const float* logits, const double* reference, std::int32_t target,
                          std::int64_t vocab) {
  const double lse = LogSumExp(logits, vocab);
  double kl = 0;
  for (std::int64_t i = 0; i < vocab; ++i) {
    kl += std::exp(reference[i]) * (reference[i] - (logits[i] - lse));
  }
  const auto likeliest = std::max_element(reference, reference + vocab) - reference;
  return {.kl = kl, .nll = lse - logits[target], .same = ArgMax(logits, vocab) == likeliest};
}

// Sums over the predictions of one document that count: the reference, then each way.
std::vector<PredictionSums> ScoreDocument(HandOver& handed, const Document& document,
                                          const DocumentCut& cut, HeldOutWatch& watch) {
  const ModelConfig& config = handed.consumer().model->config();
  const absl::Span<const std::int32_t> tokens(document.tokens);
  handed.Take(tokens.subspan(0, static_cast<std::size_t>(cut.prefix)));
  watch.OnPrefix(handed, cut.prefix);
  const auto run = tokens.subspan(static_cast<std::size_t>(cut.prefix),
                                  static_cast<std::size_t>(cut.continuation));
  std::vector<std::vector<float>> hidden;
  for (std::size_t i = 0; i < handed.caches(); ++i) {
    const float* h = handed.Run(i, run, cut.prefix, [&](int layer, const float* after) {
      watch.OnHidden(i, layer, cut.continuation, after);
    });
    hidden.emplace_back(h, h + cut.continuation * config.hidden);
  }
  std::vector<PredictionSums> sums(handed.caches());
  PredictionScorer(handed.pass(), config.vocab, handed.executor())
      .Add(hidden, cut.before_answer, cut.continuation, tokens.data() + cut.prefix + 1,
           absl::MakeSpan(sums));
  return sums;
}

}  // namespace

void PredictionScorer::Add(const std::vector<std::vector<float>>& hidden, std::int32_t begin,
                           std::int32_t end, const std::int32_t* targets,
                           absl::Span<PredictionSums> sums) {
  for (; begin < end; begin += kRows) {
    AddRows(hidden, begin, std::min<std::int32_t>(end, begin + kRows), targets, sums);
  }
}

void PredictionScorer::AddRows(const std::vector<std::vector<float>>& hidden, std::int32_t begin,
                               std::int32_t end, const std::int32_t* targets,
                               absl::Span<PredictionSums> sums) {
  std::vector<std::int32_t> rows(static_cast<std::size_t>(end - begin));
  std::iota(rows.begin(), rows.end(), begin);
  const auto count = static_cast<std::int64_t>(rows.size());
  reference_.resize(static_cast<std::size_t>(count * vocab_));
  std::vector<PredictionSums> each(rows.size());
  for (std::size_t i = 0; i < hidden.size(); ++i) {
    const float* logits = pass_.Logits(hidden[i].data(), rows);
    executor_.ParallelFor(count, 1, [&](std::int64_t b, std::int64_t e) {
      for (std::int64_t r = b; r < e; ++r) {
        const float* row = logits + r * vocab_;
        double* reference = reference_.data() + r * vocab_;
        if (i == 0) LogSoftmax(row, vocab_, reference);
        each[static_cast<std::size_t>(r)] = CompareRow(row, reference, targets[begin + r], vocab_);
      }
    });
    // In order, so that the number of threads changes nothing.
    for (const PredictionSums& s : each) {
      sums[i].kl += s.kl;
      sums[i].nll += s.nll;
      sums[i].same += s.same;
    }
  }
}

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

absl::StatusOr<HeldOutScores> ScoreHeldOut(const ProbedModel& producer, const ProbedModel& consumer,
                                           absl::Span<const Document* const> documents,
                                           absl::Span<const PrefixWay> ways,
                                           const HeldOutOptions& options, Executor& executor) {
  const std::int32_t most = options.prefix + options.continuation;
  BATON_ASSIGN_OR_RETURN(auto handed, HandOver::Create(producer, consumer, ways, most, executor));
  HeldOutWatch nobody;
  HeldOutWatch& watch = options.watch != nullptr ? *options.watch : nobody;

  std::vector<double> weights;
  std::vector<std::vector<double>> kl(ways.size() + 1);
  std::vector<PredictionSums> total(ways.size() + 1);
  for (const Document* document : documents) {
    const DocumentCut cut(*document, options.prefix, options.continuation);
    const std::vector<PredictionSums> sums = ScoreDocument(*handed, *document, cut, watch);
    watch.OnDocument(*document, cut, sums);
    weights.push_back(cut.predictions());
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
    const PredictionSums& s = total[w + 1];
    scores.ways.push_back({.name = ways[w].name,
                           .kl = s.kl / tokens,
                           .kl_error = RatioError(kl[w + 1], weights),
                           .nll = s.nll / tokens,
                           .top1 = static_cast<double>(s.same) / tokens});
  }
  return scores;
}

}  // namespace baton
