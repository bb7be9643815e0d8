// What a calibration is told.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/scd/calibrate/calibration_group.h"
#include "common/scd/calibrate/layer_statistics.h"
#include "common/scd/calibrate/metric.h"
#include "common/scd/calibrate/patch.h"
#include "common/scd/calibrate/regression.h"
#include "common/scd/calibrate/separate_code.h"
#include "common/scd/codec.h"
#include "common/weights/layer_run.h"

namespace baton {

inline constexpr std::size_t kMaxRidges = 8;
inline constexpr std::size_t kMaxRuns = 16;

// The candidate whose codes and decoder training starts from.
enum class TrainFrom {
  kBest,  // the lowest KL on the documents that choose patches; of several consumers, of all
  kRaw,   // raw, whose encoder is one for all consumers that learn from the same texts
};

struct CalibrationOptions {
  CodeSource source = CodeSource::kHidden;
  Metric metric = Metric::kFisher;
  double bytes_per_token = 0;  // of codes, at most; above 0
  // RegressionOptions::ridge, each above 0 and a closed form of its own; the first one also fits
  // patched layers. Much where the consumer's states drifted, little where they are the producer's
  // in another basis.
  std::vector<double> ridges = {0.1, 0.001};
  // Candidates with codes found another way (regression.h), at the first ridge; for comparison.
  // kStacked: of one consumer only.
  std::vector<Factorisation> factorisations = {};
  // A further candidate with codes of K and V by themselves, of at most so many components a layer.
  // Of one consumer only.
  std::optional<SeparateRanks> separate = {};
  // Of every component, one of kBitChoices above 0; 0: each has what it is worth.
  std::uint8_t component_bits = 0;
  std::int64_t max_tokens = 65536;         // to learn from
  std::int64_t statistics_tokens = 65536;  // of these, so many for the statistics, about
  std::int32_t prefix = 512;               // HeldOutOptions
  std::int32_t continuation = 128;
  std::int64_t held_out = 16;  // documents that judge, at least 1
  // Each candidate is judged with these seams as well (PrefixWay::seam); above 0.
  std::vector<std::int32_t> seams = {16};
  // Of the trained candidate; 0 epochs: there is none.
  int epochs = 3;
  TrainFrom train_from = TrainFrom::kBest;
  std::int64_t train_documents = 160;
  std::int64_t train_rank = 96;
  double learning_rate = 1e-3;
  // Of the patched candidates; off: there are none. Source kHidden and one consumer only.
  PatchOptions patch;
  // Learned documents that choose where training starts, and patches; those that chose a trained
  // candidate's epoch come first.
  std::int64_t patch_documents = 8;
  // Of training the best patched codec (all its layers, and the MLP of those patched); 0: it is
  // not.
  int patch_epochs = 0;
  std::int64_t fisher_documents = 32;
  std::int64_t sample_rows = 4096;             // of each layer, for levels
  CodecStorage storage = CodecStorage::kInt8;  // candidates are rounded to it and measured then
  // Runs of layers that the consumer computes itself (run_code.h): a candidate for each and every
  // ridge, which are then the only ones to choose from. Source kHidden and one consumer only.
  std::vector<LayerRun> runs = {};
  std::uint64_t seed = 0;
  // Start of the paths of files that keep what takes long: finished epochs of each trained
  // candidate (KlTrainingOptions) and what sets of patches are worth (PatchJournal).
  // CheckpointFiles has them all; they are not deleted. Empty: nothing is kept.
  std::string checkpoints;
  CalibrationProgress progress;  // may be null

  bool patches() const { return patch.choice != PatchChoice::kOff; }
};

// Documents are at most this long.
inline std::int32_t DocumentTokens(const CalibrationOptions& options) {
  return options.prefix + options.continuation;
}

// INVALID_ARGUMENT naming the option that is out of range, or not for these models (which passed
// CheckGroup).
absl::Status CheckOptions(const CalibrationOptions& options, const CalibrationGroup& group);

// As one consumer of a group has them: with several, what is being done and the files that keep it
// have its name.
CalibrationOptions OptionsOf(const CalibrationConsumer& consumer, const CalibrationGroup& group,
                             const CalibrationOptions& options);

}  // namespace baton
