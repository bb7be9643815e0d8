// The candidates of one consumer: codecs with where they come from, what is trained and patched of
// them, and what the consumer's predictions make of each.
//
//   ConsumerCandidates mine(group, 0, split, options, executor);
//   BATON_RETURN_IF_ERROR(mine.Add(std::move(fitted)));           // any number of them
//   BATON_ASSIGN_OR_RETURN(ConsumerKl kl, mine.ChoosingKl());
//   BATON_RETURN_IF_ERROR(mine.AddTrained(best, options.epochs, kTrainedName));
//   BATON_ASSIGN_OR_RETURN(HeldOutScores scores, mine.Judge());
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/scd/calibrate/calibration_group.h"
#include "common/scd/calibrate/calibration_options.h"
#include "common/scd/calibrate/candidate.h"
#include "common/scd/calibrate/documents.h"
#include "common/scd/calibrate/held_out.h"
#include "common/scd/calibrate/kl_training.h"
#include "common/scd/calibrate/layer_statistics.h"
#include "common/scd/calibrate/patch.h"
#include "common/scd/calibrate/prefix_way.h"
#include "common/scd/calibrate/shared_choice.h"
#include "common/scd/codec.h"
#include "kernels/executor.h"

namespace baton {

// Of the candidate with the first one's decoder trained.
inline constexpr char kTrainedName[] = "trained";

// What is appended to CalibrationOptions::checkpoints (those of OptionsOf).
absl::Span<const char* const> CheckpointNames();

class ConsumerCandidates {
 public:
  // `group`, `split` and `executor` must outlive it. `options`: those of the group.
  ConsumerCandidates(const CalibrationGroup& group, std::size_t consumer,
                     const DocumentSplit& split, const CalibrationOptions& options,
                     Executor& executor);

  const std::vector<Candidate>& candidates() const { return candidates_; }
  const std::vector<Codec>& codecs() const { return codecs_; }  // of the candidates
  const std::string& patch_base() const { return patch_base_; }
  const PatchSelection* patch() const { return patch_ ? &*patch_ : nullptr; }

  // What was fitted, rounded as it will be stored. INVALID_ARGUMENT as CheckCodec.
  absl::Status Add(Candidate fitted);

  // The candidate `from` with a decoder trained for what the consumer says. As TrainDecoder.
  absl::Status AddTrained(std::size_t from, int epochs, const std::string& name);

  // The best one by now, by ChoosingKl, with layers patched, each within the bytes it had; and,
  // with CalibrationOptions::patch_epochs, trained. `metric`: of the consumer's K/V. As
  // SelectPatches and TrainDecoder.
  absl::Status AddPatched(const CalibrationStatistics& statistics,
                          const std::vector<Matrix>& metric);

  // For each of CalibrationOptions::runs and each ridge, the best one by now with that run.
  // `metric` as AddPatched has it. As ChoosingKl.
  absl::Status AddRuns(const CalibrationStatistics& statistics, const std::vector<Matrix>& metric);

  // On documents that trained nothing. As ScoreHeldOut.
  absl::StatusOr<ConsumerKl> ChoosingKl() const;

  // On the held-out documents: uncoded raw K/V, each candidate, then each with each seam. As
  // ScoreHeldOut.
  absl::StatusOr<HeldOutScores> Judge() const;

 private:
  std::string CheckpointPath(const std::string& name) const;
  absl::Span<const Document* const> ChoosingDocuments() const;
  std::string PatchKey(const Codec& start, const Codec& patched) const;
  std::size_t CandidateNamed(const std::string& name) const;
  absl::StatusOr<PrefixWay> Way(const std::string& name, const Codec& codec) const;
  absl::StatusOr<std::vector<PrefixWay>> Ways() const;
  absl::StatusOr<HeldOutScores> Score(absl::Span<const Document* const> documents,
                                      absl::Span<const PrefixWay> ways,
                                      const CalibrationProgress& progress) const;
  absl::StatusOr<std::vector<double>> Kl(const std::vector<PrefixWay>& ways) const;
  absl::StatusOr<PatchSelection> ChoosePatches(std::size_t base, const Codec& patched) const;
  void Take(const CandidateSpec& like, const std::string& name, Codec codec);
  absl::StatusOr<KlTrainingResult> Train(const Codec& start, int epochs,
                                         const std::string& name) const;

  const CalibrationGroup& group_;
  const CalibrationConsumer& consumer_;
  const DocumentSplit& split_;
  const CalibrationOptions options_;  // this consumer's
  Executor& executor_;
  std::vector<Candidate> candidates_;
  std::vector<Codec> codecs_;  // of the candidates
  std::string patch_base_;     // candidate whose layers were patched
  std::optional<PatchSelection> patch_;
};

}  // namespace baton
