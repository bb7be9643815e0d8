// From two models and texts to a codec: statistics of both, candidates, and the choice among them
// by what they do to the consumer's predictions on held-out texts.
//
//   CalibrationPair pair = {.producer = ..., .consumer = ..., ...};
//   BATON_ASSIGN_OR_RETURN(CalibrationResult r, Calibrate(pair, documents, options, executor));
//   BATON_RETURN_IF_ERROR(SaveCodec(r.codec, "codec.safetensors"));
//
// Least squares towards the consumer's states is not always the better codec: where the consumer
// has learned new skills, regression to the mean can cost more than alignment wins. So `raw` (the
// producer's own K/V, coded) is always a candidate, another one starts at the best of them and is
// trained for the consumer's predictions (kl_training.h), and the lowest held-out KL is what is
// kept. On request layers of the best of them are patched (patch.h), which makes further
// candidates.
//
// Source of the idea: arXiv 2606.07684, section 4 (REUSE).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/scd/calibrate/candidate.h"
#include "common/scd/calibrate/documents.h"
#include "common/scd/calibrate/held_out.h"
#include "common/scd/calibrate/layer_statistics.h"
#include "common/scd/calibrate/metric.h"
#include "common/scd/calibrate/model_probe.h"
#include "common/scd/calibrate/patch.h"
#include "common/scd/calibrate/regression.h"
#include "common/scd/codec.h"
#include "kernels/executor.h"

namespace baton {

struct CalibrationPair {
  ProbedModel producer;
  ProbedModel consumer;
  // As CodecIdentity names them.
  std::string producer_weights;
  std::string consumer_weights;
  std::string tokenizer;
};

inline constexpr std::size_t kMaxRidges = 8;

// The candidate whose codes and decoder training starts from.
enum class TrainFrom {
  kBest,  // the lowest KL on the documents that choose patches
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
  std::vector<Factorisation> factorisations = {};
  // A further candidate with codes of K and V by themselves, of at most so many components a layer.
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
  // Of the patched candidates; off: there are none. Source kHidden only.
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
  std::uint64_t seed = 0;
  // Start of the paths of files that keep what takes long: finished epochs of each trained
  // candidate (KlTrainingOptions) and what sets of patches are worth (PatchJournal). Names from
  // CheckpointNames() are appended; the files are not deleted. Empty: nothing is kept.
  std::string checkpoints;
  CalibrationProgress progress;  // may be null
};

absl::Span<const char* const> CheckpointNames();

// Documents are at most this long.
inline std::int32_t DocumentTokens(const CalibrationOptions& options) {
  return options.prefix + options.continuation;
}

struct CalibrationResult {
  Codec codec;  // with its report
  std::string chosen;
  // Uncoded raw K/V first, then each candidate, then each candidate with each seam.
  HeldOutScores scores;
  std::vector<double> bytes_per_token;  // of each of these ways
};

// INVALID_ARGUMENT when the shapes differ that a codec has: names the field and both numbers.
absl::Status CheckPair(const ModelConfig& producer, const ModelConfig& consumer);

// INVALID_ARGUMENT naming the file when an id is no row of both embeddings, of `vocab` rows at
// least.
absl::Status CheckTokens(const DocumentSet& set, std::int64_t vocab);

// Bytes of one token's K/V in fp16, what `raw` sends.
double RawBytesPerToken(const ModelConfig& config);

// Deterministic by the seed, whatever the number of threads. Errors: INVALID_ARGUMENT (the models'
// shapes differ: names the field and both numbers; an option out of range; too few documents),
// RESOURCE_EXHAUSTED, INTERNAL with what Torch said.
absl::StatusOr<CalibrationResult> Calibrate(const CalibrationPair& pair, const DocumentSet& set,
                                            const CalibrationOptions& options, Executor& executor);

}  // namespace baton
