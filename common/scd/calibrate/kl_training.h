// A codec's decoder trained for what the consumer says (scd.md, "Distil"): KL of the consumer's
// predictions over its own K/V of a prefix against those over decoded K/V, through the frozen
// consumer, on the tokens that follow. Codes are made and quantised as the nodes do, and stay as
// they are; of each layer's decoder a low-rank correction and the offset are learned:
//
//   [K | V] = (B + U V) z' + offset,   U = 0 at start
//
// and of a patched layer, which is decoded to the attention input that the frozen consumer makes
// K and V of, the MLP as well: W_2 = 0 at start, where it has none.
//
// so what is trained starts at, and is never judged against anything but, the given codec.
// Deterministic by the seed, whatever the number of threads. AdamW, linear warm-up and cosine,
// gradients clipped to norm 1. After every epoch documents that are not learned from are scored;
// the best epoch is what stays (the start included).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/scd/calibrate/documents.h"
#include "common/scd/calibrate/layer_statistics.h"
#include "common/scd/calibrate/model_probe.h"
#include "common/scd/codec.h"
#include "kernels/executor.h"

namespace baton {

struct KlTrainingOptions {
  std::int64_t rank = 96;  // of the correction
  int epochs = 3;
  int batch = 4;  // documents
  double learning_rate = 1e-3;
  double warmup = 0.1;              // part of all updates
  std::int32_t prefix = 512;        // tokens of a document, at most
  std::int32_t continuation = 128;  // after it, at most
  std::int64_t judges = 8;          // documents that choose the epoch
  std::uint64_t seed = 0;
  // File that keeps every finished epoch, so that the same training, cut short, goes on from there
  // to the same codec; that of another training is begun anew. Empty: none is kept.
  std::string checkpoint;
  CalibrationProgress progress;  // in documents; may be null
};

struct KlTrainingResult {
  Codec codec;
  // Mean KL in nats a prediction that counts (DocumentCut), of the documents that choose: at start
  // and after each epoch.
  std::vector<double> judged_kl;
  std::vector<double> learned_kl;  // of each epoch, while it ran: what it minimised
};

// `start` is without a run. Keeps codes, the consumer's first rows and its predictions of every
// document: for a vocabulary of 49,152 about 13 MB each. INVALID_ARGUMENT when there are not more
// documents than judges; RESOURCE_EXHAUSTED; UNAVAILABLE for the checkpoint. Throws c10::Error.
absl::StatusOr<KlTrainingResult> TrainDecoder(const ProbedModel& producer,
                                              const ProbedModel& consumer, const Codec& start,
                                              absl::Span<const Document* const> documents,
                                              const KlTrainingOptions& options, Executor& executor);

}  // namespace baton
