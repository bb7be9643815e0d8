#include "common/scd/calibrate/consumer_candidates.h"

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/scd/calibrate/patch_journal.h"
#include "common/scd/calibrate/run_code.h"

namespace baton {
namespace {

constexpr char kPatchedName[] = "patched";
constexpr char kPatchedTrainedName[] = "patched_trained";
// Of what is kept of the choice of patches.
constexpr char kPatchesName[] = "patches";

}  // namespace

absl::Span<const char* const> CheckpointNames() {
  static constexpr const char* kNames[] = {kTrainedName, kPatchedTrainedName, kPatchesName};
  return kNames;
}

ConsumerCandidates::ConsumerCandidates(const CalibrationGroup& group, std::size_t consumer,
                                       const DocumentSplit& split,
                                       const CalibrationOptions& options, Executor& executor)
    : group_(group),
      consumer_(group.consumers[consumer]),
      split_(split),
      options_(OptionsOf(consumer_, group, options)),
      executor_(executor) {}

std::string ConsumerCandidates::CheckpointPath(const std::string& name) const {
  return options_.checkpoints.empty() ? "" : Cat(options_.checkpoints, name);
}

absl::Status ConsumerCandidates::Add(Candidate fitted) {
  const ModelConfig& c = group_.producer.model->config();
  Codec codec;
  codec.identity = {.producer_weights = group_.producer_weights,
                    .consumer_weights = consumer_.weights,
                    .tokenizer = group_.tokenizer,
                    .source = options_.source,
                    .layers = c.layers,
                    .hidden = c.hidden,
                    .kv_heads = c.kv_heads,
                    .head_dim = c.head_dim};
  codec.layers = fitted.layers;
  if (options_.storage == CodecStorage::kInt8) RoundToInt8(codec);
  BATON_RETURN_IF_ERROR(CheckCodec(codec));
  candidates_.push_back(std::move(fitted));
  codecs_.push_back(std::move(codec));
  return absl::OkStatus();
}

// Of a codec whose encoder is rounded already.
void ConsumerCandidates::Take(const CandidateSpec& like, const std::string& name, Codec codec) {
  if (options_.storage == CodecStorage::kInt8) RoundToInt8(codec);
  Candidate candidate;
  candidate.spec = like;
  candidate.spec.name = name;
  candidate.spec.target = CodeTarget::kConsumer;
  candidate.layers = codec.layers;
  candidates_.push_back(std::move(candidate));
  codecs_.push_back(std::move(codec));
}

absl::Status ConsumerCandidates::AddTrained(std::size_t from, int epochs, const std::string& name) {
  BATON_ASSIGN_OR_RETURN(KlTrainingResult trained, Train(codecs_[from], epochs, name));
  Take(candidates_[from].spec, name, std::move(trained.codec));
  candidates_.back().judged_kl = std::move(trained.judged_kl);
  candidates_.back().trained_from = candidates_[from].spec.name;
  return absl::OkStatus();
}

absl::StatusOr<KlTrainingResult> ConsumerCandidates::Train(const Codec& start, int epochs,
                                                           const std::string& name) const {
  absl::Span<const Document* const> documents(split_.learned);
  if (static_cast<std::int64_t>(documents.size()) > options_.train_documents) {
    documents = documents.first(static_cast<std::size_t>(options_.train_documents));
  }
  KlTrainingOptions training;
  training.rank = options_.train_rank;
  training.epochs = epochs;
  training.learning_rate = options_.learning_rate;
  training.prefix = options_.prefix;
  training.continuation = options_.continuation;
  const auto count = static_cast<std::int64_t>(documents.size());
  training.judges = std::max<std::int64_t>(1, count / 10);
  // Patches are chosen on documents that trained nothing.
  if (options_.patches()) {
    training.judges = std::max(training.judges, std::min(options_.patch_documents, count / 2));
  }
  training.seed = options_.seed;
  training.checkpoint = CheckpointPath(name);
  training.progress = options_.progress;
  return TrainDecoder(group_.producer, consumer_.model, start, documents, training, executor_);
}

// Documents of training that do not train, or the first of all.
absl::Span<const Document* const> ConsumerCandidates::ChoosingDocuments() const {
  const auto count = static_cast<std::size_t>(options_.patch_documents);
  return absl::MakeConstSpan(split_.learned).subspan(0, std::min(count, split_.learned.size()));
}

absl::StatusOr<PrefixWay> ConsumerCandidates::Way(const std::string& name,
                                                  const Codec& codec) const {
  return CodedWay(name, codec, consumer_.model, options_.prefix, executor_);
}

// Uncoded K/V, then each candidate.
absl::StatusOr<std::vector<PrefixWay>> ConsumerCandidates::Ways() const {
  std::vector<PrefixWay> ways = {UncodedWay("uncoded", consumer_.model, executor_)};
  for (std::size_t i = 0; i < codecs_.size(); ++i) {
    BATON_ASSIGN_OR_RETURN(ways.emplace_back(), Way(candidates_[i].spec.name, codecs_[i]));
  }
  return ways;
}

absl::StatusOr<HeldOutScores> ConsumerCandidates::Score(absl::Span<const Document* const> documents,
                                                        absl::Span<const PrefixWay> ways,
                                                        const CalibrationProgress& progress) const {
  return ScoreHeldOut(
      group_.producer, consumer_.model, documents, ways,
      {.prefix = options_.prefix, .continuation = options_.continuation, .progress = progress},
      executor_);
}

absl::StatusOr<std::vector<double>> ConsumerCandidates::Kl(
    const std::vector<PrefixWay>& ways) const {
  // A cache for each way: a dozen at a time.
  constexpr std::size_t kAtOnce = 12;
  std::vector<double> kl;
  for (std::size_t at = 0; at < ways.size(); at += kAtOnce) {
    BATON_ASSIGN_OR_RETURN(
        const HeldOutScores scores,
        Score(ChoosingDocuments(),
              absl::MakeConstSpan(ways).subspan(at, std::min(kAtOnce, ways.size() - at)), nullptr));
    for (const WayScore& way : scores.ways) kl.push_back(way.kl);
  }
  return kl;
}

absl::StatusOr<ConsumerKl> ConsumerCandidates::ChoosingKl() const {
  BATON_ASSIGN_OR_RETURN(const std::vector<PrefixWay> ways, Ways());
  BATON_ASSIGN_OR_RETURN(const std::vector<double> kl, Kl(ways));
  return ConsumerKl{.uncoded = kl[0], .candidates = {kl.begin() + 1, kl.end()}};
}

absl::StatusOr<HeldOutScores> ConsumerCandidates::Judge() const {
  BATON_ASSIGN_OR_RETURN(std::vector<PrefixWay> ways, Ways());
  for (std::size_t i = 0; i < codecs_.size(); ++i) {
    for (const std::int32_t seam : options_.seams) {
      ways.push_back(WithSeam(ways[i + 1], seam));
    }
  }
  return Score(split_.held_out, ways, options_.progress);
}

// What decides what a set of patches is worth.
std::string ConsumerCandidates::PatchKey(const Codec& start, const Codec& patched) const {
  return Cat(start.Digest(), " ", patched.Digest(), " prefix ", options_.prefix, " continuation ",
             options_.continuation, " ", TokensDigest(ChoosingDocuments()));
}

std::size_t ConsumerCandidates::CandidateNamed(const std::string& name) const {
  return static_cast<std::size_t>(
      std::find_if(candidates_.begin(), candidates_.end(),
                   [&](const Candidate& c) { return c.spec.name == name; }) -
      candidates_.begin());
}

absl::StatusOr<PatchSelection> ConsumerCandidates::ChoosePatches(std::size_t base,
                                                                 const Codec& patched) const {
  const Codec& start = codecs_[base];
  BATON_ASSIGN_OR_RETURN(const PrefixWay without, Way(patch_base_, start));
  BATON_ASSIGN_OR_RETURN(const PrefixWay with, Way(kPatchedName, patched));
  std::int64_t judged = 0;
  const PatchJudge judge = [&](const std::vector<std::vector<std::size_t>>& sets)
      -> absl::StatusOr<std::vector<double>> {
    std::vector<PrefixWay> mixed;
    mixed.reserve(sets.size());
    for (const auto& layers : sets) mixed.push_back(MixedWay("", without, with, layers));
    judged += static_cast<std::int64_t>(sets.size());
    if (options_.progress) options_.progress("choosing patches", judged, judged);
    return Kl(mixed);
  };
  PatchJournal journal(CheckpointPath(kPatchesName), PatchKey(start, patched));
  // A trained candidate has the codes of the one it started from.
  const std::string& from = candidates_[base].trained_from;
  const std::size_t codes = from.empty() ? base : CandidateNamed(from);
  return SelectPatches(candidates_[codes].relative_error, options_.patch, journal.Remember(judge));
}

absl::Status ConsumerCandidates::AddPatched(const CalibrationStatistics& statistics,
                                            const std::vector<Matrix>& metric) {
  BATON_ASSIGN_OR_RETURN(const ConsumerKl kl, ChoosingKl());
  const std::size_t base = BestForAll({kl});
  patch_base_ = candidates_[base].spec.name;
  const Codec start = codecs_[base];
  std::vector<std::size_t> all(start.layers.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  Codec patched = WithPatches(start,
                              PatchLayers(consumer_.model, statistics, metric, start,
                                          options_.ridges.front(), options_.progress, executor_),
                              all);
  if (options_.storage == CodecStorage::kInt8) RoundToInt8(patched);
  BATON_RETURN_IF_ERROR(CheckCodec(patched));
  BATON_ASSIGN_OR_RETURN(patch_, ChoosePatches(base, patched));
  if (patch_->count == 0) return absl::OkStatus();
  Take(candidates_[base].spec, kPatchedName, WithPatches(start, patched.layers, patch_->layers()));
  if (options_.patch_epochs == 0) return absl::OkStatus();
  return AddTrained(codecs_.size() - 1, options_.patch_epochs, kPatchedTrainedName);
}

absl::Status ConsumerCandidates::AddRuns(const CalibrationStatistics& statistics,
                                         const std::vector<Matrix>& metric) {
  BATON_ASSIGN_OR_RETURN(const ConsumerKl kl, ChoosingKl());
  const std::size_t base = BestForAll({kl});
  const std::string base_name = candidates_[base].spec.name;
  const auto total = static_cast<std::int64_t>(options_.runs.size() * options_.ridges.size());
  std::int64_t done = 0;
  for (const LayerRun run : options_.runs) {
    for (const double ridge : options_.ridges) {
      Codec codec =
          WithRun(codecs_[base], run,
                  StreamLayer(consumer_.model, statistics, metric, codecs_[base], run, ridge));
      CandidateSpec spec = candidates_[base].spec;
      spec.regression.ridge = ridge;
      const std::string name = Cat("run:", LayerRunText(run));
      Take(spec, ridge == options_.ridges.front() ? name : Cat(name, "@", ridge), std::move(codec));
      candidates_.back().run_base = base_name;
      BATON_RETURN_IF_ERROR(CheckCodec(codecs_.back()));
      if (options_.progress) options_.progress("fitting runs", ++done, total);
    }
  }
  return absl::OkStatus();
}

}  // namespace baton
