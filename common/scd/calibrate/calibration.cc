#include "common/scd/calibrate/calibration.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <set>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/scd/calibrate/consumer_candidates.h"
#include "common/scd/calibrate/report.h"
#include "common/scd/calibrate/shared_choice.h"
#include "common/scd/calibrate/target_metrics.h"
#include "common/scd/calibrate/tensors.h"

namespace baton {
namespace {

// raw is linear in the source, so that its ridge changes nothing.
std::vector<CandidateSpec> Specs(const CalibrationOptions& options) {
  std::vector<CandidateSpec> specs = {{.name = "raw",
                                       .target = CodeTarget::kProducer,
                                       .regression = {.ridge = options.ridges.front()}}};
  for (const double ridge : options.ridges) {
    specs.push_back({.name = specs.size() == 1 ? "closed" : Cat("closed@", ridge),
                     .target = CodeTarget::kConsumer,
                     .regression = {.ridge = ridge}});
  }
  for (const Factorisation factorisation : options.factorisations) {
    specs.push_back(
        {.name = FactorisationName(factorisation),
         .target = CodeTarget::kConsumer,
         .regression = {.factorisation = factorisation, .ridge = options.ridges.front()}});
  }
  if (options.separate) {
    specs.push_back({.name = "separate",
                     .target = CodeTarget::kConsumer,
                     .regression = {.ridge = options.ridges.front()},
                     .separate = options.separate});
  }
  for (CandidateSpec& spec : specs) {
    spec.regression.max_rank = kMaxCodecRank;
    spec.component_bits = options.component_bits;
  }
  return specs;
}

std::vector<ProbedModel> ConsumersOf(const CalibrationGroup& group) {
  std::vector<ProbedModel> models;
  for (const CalibrationConsumer& c : group.consumers) models.push_back(c.model);
  return models;
}

std::int64_t SmallestVocabulary(const CalibrationGroup& group) {
  std::int64_t vocab = group.producer.model->config().vocab;
  for (const CalibrationConsumer& c : group.consumers) {
    vocab = std::min<std::int64_t>(vocab, c.model.model->config().vocab);
  }
  return vocab;
}

class Calibration {
 public:
  Calibration(const CalibrationGroup& group, const DocumentSet& set,
              const CalibrationOptions& options, Executor& executor)
      : group_(group), set_(set), options_(options), executor_(executor) {}

  absl::StatusOr<std::vector<CalibrationResult>> Run() {
    BATON_RETURN_IF_ERROR(CheckGroup(group_));
    BATON_RETURN_IF_ERROR(CheckOptions(options_, group_));
    BATON_RETURN_IF_ERROR(CheckTokens(set_, SmallestVocabulary(group_)));
    BATON_ASSIGN_OR_RETURN(
        split_, SplitDocuments(set_, options_.held_out, options_.max_tokens, options_.seed));
    for (std::size_t c = 0; c < group_.consumers.size(); ++c) {
      consumers_.emplace_back(group_, c, split_, options_, executor_);
    }
    BATON_RETURN_IF_ERROR(MakeAllCandidates());
    std::vector<HeldOutScores> scores;
    for (const ConsumerCandidates& c : consumers_) {
      BATON_ASSIGN_OR_RETURN(scores.emplace_back(), c.Judge());
    }
    return Choose(scores);
  }

 private:
  absl::Status MakeAllCandidates() {
    std::set<int> streams;
    for (const LayerRun run : options_.runs) streams.insert(run.begin);
    const bool after_training = options_.patches() || !options_.runs.empty();
    BATON_ASSIGN_OR_RETURN(CalibrationStatistics statistics,
                           GatherStatistics(group_.producer, ConsumersOf(group_), split_.learned,
                                            {.source = options_.source,
                                             .inputs = after_training,
                                             .streams = streams,
                                             .sample_rows = options_.sample_rows,
                                             .max_tokens = DocumentTokens(options_),
                                             .tokens = options_.statistics_tokens,
                                             .seed = options_.seed,
                                             .progress = options_.progress},
                                            executor_));
    if (statistics.tokens == 0) {
      return absl::InvalidArgumentError("documents: nothing after their first tokens");
    }
    BATON_ASSIGN_OR_RETURN(
        TargetMetrics metrics,
        MakeTargetMetrics(group_, statistics, split_.learned, options_, executor_));
    const auto budget = static_cast<std::int64_t>(std::floor(options_.bytes_per_token * 8));
    for (const CandidateSpec& spec : Specs(options_)) {
      std::vector<Candidate> fitted =
          MakeCandidates(spec, statistics, metrics, budget, options_.progress, executor_);
      for (std::size_t c = 0; c < consumers_.size(); ++c) {
        BATON_RETURN_IF_ERROR(consumers_[c].Add(std::move(fitted[c])));
      }
    }
    // Training takes long and needs none of it.
    if (!after_training) {
      statistics = {};
      metrics = {};
    }
    if (options_.epochs > 0) BATON_RETURN_IF_ERROR(Train());
    if (options_.patches()) {
      BATON_RETURN_IF_ERROR(consumers_.front().AddPatched(statistics, metrics.consumers.front()));
    }
    if (options_.runs.empty()) return absl::OkStatus();
    return consumers_.front().AddRuns(statistics, metrics.consumers.front());
  }

  // All from one candidate, so that they end with its encoder.
  absl::Status Train() {
    std::size_t start = 0;  // raw
    if (options_.train_from == TrainFrom::kBest) {
      std::vector<ConsumerKl> kl;
      for (const ConsumerCandidates& c : consumers_) {
        BATON_ASSIGN_OR_RETURN(kl.emplace_back(), c.ChoosingKl());
      }
      start = BestForAll(kl);
    }
    for (ConsumerCandidates& c : consumers_) {
      BATON_RETURN_IF_ERROR(c.AddTrained(start, options_.epochs, kTrainedName));
    }
    return absl::OkStatus();
  }

  std::vector<CalibrationResult> Choose(const std::vector<HeldOutScores>& scores) const {
    std::vector<ConsumerKl> kl;
    for (const HeldOutScores& s : scores) {
      ConsumerKl& of = kl.emplace_back(ConsumerKl{.uncoded = s.ways.front().kl, .candidates = {}});
      for (std::size_t i = 0; i < consumers_.front().codecs().size(); ++i) {
        of.candidates.push_back(s.ways[i + 1].kl);
      }
    }
    // A candidate's encoder is the same for all of them.
    std::vector<std::string> encoders;
    std::vector<std::size_t> among;  // those with a run, where runs are asked for
    for (const Codec& codec : consumers_.front().codecs()) {
      if (options_.runs.empty() || !codec.run().empty()) among.push_back(encoders.size());
      encoders.push_back(codec.EncoderDigest());
    }
    const SharedChoice choice = ChooseShared(kl, encoders, among);
    std::vector<CalibrationResult> results;
    for (std::size_t c = 0; c < consumers_.size(); ++c) {
      results.push_back(Result(c, scores[c], kl, choice));
    }
    return results;
  }

  CalibrationResult Result(std::size_t consumer, const HeldOutScores& scores,
                           const std::vector<ConsumerKl>& kl, const SharedChoice& choice) const {
    const ConsumerCandidates& of = consumers_[consumer];
    const std::size_t chosen = choice.chosen[consumer];
    CalibrationResult result;
    result.codec = of.codecs()[chosen];
    result.chosen = of.candidates()[chosen].spec.name;
    result.scores = scores;
    result.bytes_per_token.push_back(RawBytesPerToken(group_.producer.model->config()));
    for (const Codec& codec : of.codecs()) {
      result.bytes_per_token.push_back(codec.bytes_per_token());
    }
    for (const Codec& codec : of.codecs()) {
      result.bytes_per_token.insert(result.bytes_per_token.end(), options_.seams.size(),
                                    codec.bytes_per_token());
    }
    result.codec.report = CalibrationReport({.options = options_,
                                             .set = set_,
                                             .split = split_,
                                             .group = group_,
                                             .consumer = consumer,
                                             .codecs = of.codecs(),
                                             .candidates = of.candidates(),
                                             .scores = scores,
                                             .kl = kl,
                                             .choice = choice,
                                             .patch_base = of.patch_base(),
                                             .patch = of.patch()});
    return result;
  }

  const CalibrationGroup& group_;
  const DocumentSet& set_;
  const CalibrationOptions& options_;
  Executor& executor_;
  DocumentSplit split_;
  std::vector<ConsumerCandidates> consumers_;  // with the same candidates in the same order
};

}  // namespace

absl::StatusOr<CalibrationResult> Calibrate(const CalibrationPair& pair, const DocumentSet& set,
                                            const CalibrationOptions& options, Executor& executor) {
  BATON_ASSIGN_OR_RETURN(std::vector<CalibrationResult> results,
                         CalibrateShared(GroupOf(pair), set, options, executor));
  return std::move(results.front());
}

absl::StatusOr<std::vector<CalibrationResult>> CalibrateShared(const CalibrationGroup& group,
                                                               const DocumentSet& set,
                                                               const CalibrationOptions& options,
                                                               Executor& executor) {
  try {
    const SingleTorchThread single;
    return Calibration(group, set, options, executor).Run();
  } catch (const std::exception& e) {
    // Torch's, from a decomposition or for want of memory.
    return absl::InternalError(Cat("calibration: ", e.what()));
  }
}

std::vector<std::string> CheckpointFiles(const CalibrationGroup& group,
                                         const CalibrationOptions& options) {
  std::vector<std::string> files;
  for (const CalibrationConsumer& c : group.consumers) {
    for (const char* name : CheckpointNames()) {
      files.push_back(Cat(OptionsOf(c, group, options).checkpoints, name));
    }
  }
  return files;
}

}  // namespace baton
