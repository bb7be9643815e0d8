#include "common/scd/calibrate/calibration.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <optional>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/scd/calibrate/bit_allocation.h"
#include "common/scd/calibrate/fisher.h"
#include "common/scd/calibrate/kl_training.h"
#include "common/scd/calibrate/patch_journal.h"
#include "common/scd/calibrate/prefix_way.h"
#include "common/scd/calibrate/report.h"
#include "common/scd/calibrate/tensors.h"

namespace baton {
namespace {

// Names of candidates that are trained, and of what is kept of the choice of patches.
constexpr char kTrainedName[] = "trained";
constexpr char kPatchedTrainedName[] = "patched_trained";
constexpr char kPatchesName[] = "patches";

absl::Status Bad(const std::string& what) { return absl::InvalidArgumentError(what); }

absl::Status CheckOptions(const CalibrationOptions& o, const ModelConfig& p, const ModelConfig& c) {
  if (std::find(kBitChoices.begin(), kBitChoices.end(), o.component_bits) == kBitChoices.end()) {
    return Bad(Cat("component_bits: ", int{o.component_bits}, "; allowed: 0, 1, 2, 3, 4, 6, 8"));
  }
  // A component for every layer; and nobody sends more than raw.
  const int bits = std::max<int>(1, o.component_bits);
  const double least = static_cast<double>(p.layers * bits) / 8, most = RawBytesPerToken(p);
  if (!(o.bytes_per_token >= least && o.bytes_per_token <= most)) {
    return Bad(Cat("bytes_per_token: ", o.bytes_per_token, "; allowed: ", least, " to ", most));
  }
  if (o.ridges.empty() || o.ridges.size() > kMaxRidges) {
    return Bad(Cat("ridges: ", o.ridges.size(), " of them; allowed: 1 to ", kMaxRidges));
  }
  for (const double ridge : o.ridges) {
    if (!(ridge > 0) || !std::isfinite(ridge)) return Bad(Cat("ridges: ", ridge));
  }
  if (o.prefix < 2 * kSinkTokens || o.continuation < 2) {
    return Bad(Cat("prefix: ", o.prefix, ", continuation: ", o.continuation));
  }
  const std::int64_t context = std::min(p.max_context, c.max_context);
  if (o.prefix + o.continuation > context) {
    return Bad(Cat("prefix: ", o.prefix, " and ", o.continuation,
                   " tokens after it; the models' context is ", context));
  }
  if (o.epochs < 0 || o.train_documents < 2 || o.train_rank < 1 || !(o.learning_rate > 0)) {
    return Bad(Cat("training: ", o.epochs, " epochs of ", o.train_documents, " documents, rank ",
                   o.train_rank, ", learning rate ", o.learning_rate));
  }
  for (const std::int32_t seam : o.seams) {
    if (seam < 1 || seam >= o.prefix) return Bad(Cat("seams: ", seam, "; allowed: 1 to prefix"));
  }
  if (o.patch.choice != PatchChoice::kOff && o.source != CodeSource::kHidden) {
    return Bad("patch: patched layers are coded from source h");
  }
  if (o.patch_documents < 1 || o.patch_epochs < 0) {
    return Bad(Cat("patch: ", o.patch_documents, " documents, ", o.patch_epochs, " epochs"));
  }
  if (o.held_out < 1) return Bad(Cat("held_out: ", o.held_out, "; at least 1"));
  if (o.sample_rows < 256) return Bad(Cat("sample_rows: ", o.sample_rows, "; at least 256"));
  return absl::OkStatus();
}

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
  for (CandidateSpec& spec : specs) spec.component_bits = options.component_bits;
  return specs;
}

class Calibration {
 public:
  Calibration(const CalibrationPair& pair, const DocumentSet& set,
              const CalibrationOptions& options, Executor& executor)
      : pair_(pair), set_(set), options_(options), executor_(executor) {}

  absl::StatusOr<CalibrationResult> Run() {
    const ModelConfig& producer = pair_.producer.model->config();
    const ModelConfig& consumer = pair_.consumer.model->config();
    BATON_RETURN_IF_ERROR(CheckPair(producer, consumer));
    BATON_RETURN_IF_ERROR(CheckOptions(options_, producer, consumer));
    BATON_RETURN_IF_ERROR(CheckTokens(set_, std::min(producer.vocab, consumer.vocab)));
    BATON_ASSIGN_OR_RETURN(
        split_, SplitDocuments(set_, options_.held_out, options_.max_tokens, options_.seed));
    BATON_RETURN_IF_ERROR(MakeCandidates());
    BATON_ASSIGN_OR_RETURN(const HeldOutScores scores, Judge());
    return Choose(scores);
  }

 private:
  absl::Status MakeCandidates() {
    BATON_ASSIGN_OR_RETURN(const PairStatistics statistics,
                           GatherStatistics(pair_.producer, pair_.consumer, split_.learned,
                                            {.source = options_.source,
                                             .inputs = patches(),
                                             .sample_rows = options_.sample_rows,
                                             .max_tokens = DocumentTokens(options_),
                                             .tokens = options_.statistics_tokens,
                                             .seed = options_.seed,
                                             .progress = options_.progress},
                                            executor_));
    if (statistics.tokens == 0) return Bad("documents: nothing after their first tokens");
    BATON_ASSIGN_OR_RETURN(const TargetMetrics metrics, MakeMetrics(statistics));
    const auto budget = static_cast<std::int64_t>(std::floor(options_.bytes_per_token * 8));
    for (const CandidateSpec& spec : Specs(options_)) {
      candidates_.push_back(
          MakeCandidate(spec, statistics, metrics, budget, options_.progress, executor_));
      BATON_ASSIGN_OR_RETURN(Codec codec, ToCodec(candidates_.back()));
      codecs_.push_back(std::move(codec));
    }
    if (options_.epochs > 0) {
      BATON_ASSIGN_OR_RETURN(trained_from_, TrainingStart());
      BATON_RETURN_IF_ERROR(AddTrained(trained_from_, options_.epochs, kTrainedName));
    }
    return patches() ? Patch(statistics, metrics) : absl::OkStatus();
  }

  std::string CheckpointPath(const std::string& name) const {
    return options_.checkpoints.empty() ? "" : Cat(options_.checkpoints, name);
  }

  // What decides what a set of patches is worth.
  std::string PatchKey(const Codec& start, const Codec& patched) const {
    return Cat(start.Digest(), " ", patched.Digest(), " prefix ", options_.prefix, " continuation ",
               options_.continuation, " ", TokensDigest(PatchDocuments()));
  }

  bool patches() const { return options_.patch.choice != PatchChoice::kOff; }

  // Documents of training that do not train, or the first of all.
  absl::Span<const Document* const> PatchDocuments() const {
    const auto count = static_cast<std::size_t>(options_.patch_documents);
    return absl::MakeConstSpan(split_.learned).subspan(0, std::min(count, split_.learned.size()));
  }

  absl::StatusOr<std::vector<double>> Kl(const std::vector<PrefixWay>& ways) const {
    // A cache for each way: a dozen at a time.
    constexpr std::size_t kAtOnce = 12;
    std::vector<double> kl;
    for (std::size_t at = 0; at < ways.size(); at += kAtOnce) {
      BATON_ASSIGN_OR_RETURN(
          const HeldOutScores scores,
          ScoreHeldOut(pair_.producer, pair_.consumer, PatchDocuments(),
                       absl::MakeConstSpan(ways).subspan(at, std::min(kAtOnce, ways.size() - at)),
                       {.prefix = options_.prefix,
                        .continuation = options_.continuation,
                        .progress = nullptr},
                       executor_));
      for (const WayScore& way : scores.ways) kl.push_back(way.kl);
    }
    return kl;
  }

  // KL of each candidate by now.
  absl::StatusOr<std::vector<double>> CandidatesKl() const {
    std::vector<PrefixWay> ways;
    for (std::size_t i = 0; i < codecs_.size(); ++i) {
      ways.push_back(CodedWay(candidates_[i].spec.name, codecs_[i], pair_.consumer, executor_));
    }
    return Kl(ways);
  }

  // Where training begins: at raw, or where it has the least to go.
  absl::StatusOr<std::size_t> TrainingStart() const {
    if (options_.train_from == TrainFrom::kRaw) return 0;
    BATON_ASSIGN_OR_RETURN(const std::vector<double> kl, CandidatesKl());
    return static_cast<std::size_t>(std::min_element(kl.begin(), kl.end()) - kl.begin());
  }

  // The best codec by now, and with layers patched, each within the bytes it had.
  absl::Status Patch(const PairStatistics& statistics, const TargetMetrics& metrics) {
    BATON_ASSIGN_OR_RETURN(const std::vector<double> kl, CandidatesKl());
    const auto base = static_cast<std::size_t>(std::min_element(kl.begin(), kl.end()) - kl.begin());
    patch_base_ = candidates_[base].spec.name;
    const Codec start = codecs_[base];
    std::vector<std::size_t> all(start.layers.size());
    for (std::size_t l = 0; l < all.size(); ++l) all[l] = l;
    Codec patched = WithPatches(start,
                                PatchLayers(pair_.consumer, statistics, metrics.consumer, start,
                                            options_.ridges.front(), options_.progress, executor_),
                                all);
    if (options_.storage == CodecStorage::kInt8) RoundToInt8(patched);
    BATON_RETURN_IF_ERROR(CheckCodec(patched));
    const PrefixWay without = CodedWay(patch_base_, start, pair_.consumer, executor_);
    const PrefixWay with = CodedWay("patched", patched, pair_.consumer, executor_);
    std::int64_t judged = 0;
    const PatchJudge judge = [&](const std::vector<std::vector<std::size_t>>& sets)
        -> absl::StatusOr<std::vector<double>> {
      std::vector<PrefixWay> mixed;
      for (const auto& layers : sets) mixed.push_back(MixedWay("", without, with, layers));
      judged += static_cast<std::int64_t>(sets.size());
      if (options_.progress) options_.progress("choosing patches", judged, judged);
      return Kl(mixed);
    };
    PatchJournal journal(CheckpointPath(kPatchesName), PatchKey(start, patched));
    // A trained candidate has the codes of the one it started from.
    const std::size_t codes = candidates_[base].relative_error.empty() ? trained_from_ : base;
    BATON_ASSIGN_OR_RETURN(patch_, SelectPatches(candidates_[codes].relative_error, options_.patch,
                                                 journal.Remember(judge)));
    if (patch_->count == 0) return absl::OkStatus();
    AddCandidate(candidates_[base].spec, "patched",
                 WithPatches(start, patched.layers, patch_->layers()));
    if (options_.patch_epochs == 0) return absl::OkStatus();
    return AddTrained(codecs_.size() - 1, options_.patch_epochs, kPatchedTrainedName);
  }

  // Of a codec whose encoder is rounded already.
  void AddCandidate(const CandidateSpec& like, const std::string& name, Codec codec) {
    if (options_.storage == CodecStorage::kInt8) RoundToInt8(codec);
    Candidate candidate;
    candidate.spec = like;
    candidate.spec.name = name;
    candidate.spec.target = CodeTarget::kConsumer;
    candidate.layers = codec.layers;
    candidates_.push_back(std::move(candidate));
    codecs_.push_back(std::move(codec));
  }

  // The candidate `from` with a decoder trained for what the consumer says.
  absl::Status AddTrained(std::size_t from, int epochs, const std::string& name) {
    BATON_ASSIGN_OR_RETURN(KlTrainingResult trained, Train(codecs_[from], epochs, name));
    AddCandidate(candidates_[from].spec, name, std::move(trained.codec));
    candidates_.back().judged_kl = std::move(trained.judged_kl);
    candidates_.back().trained_from = candidates_[from].spec.name;
    return absl::OkStatus();
  }

  absl::StatusOr<KlTrainingResult> Train(const Codec& start, int epochs,
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
    if (patches()) {
      training.judges = std::max(training.judges, std::min(options_.patch_documents, count / 2));
    }
    training.seed = options_.seed;
    training.checkpoint = CheckpointPath(name);
    training.progress = options_.progress;
    return TrainDecoder(pair_.producer, pair_.consumer, start, documents, training, executor_);
  }

  absl::StatusOr<std::vector<Matrix>> Fisher(const ProbedModel& model) const {
    return FisherMetric(model, split_.learned,
                        {.documents = options_.fisher_documents,
                         .prefix = options_.prefix,
                         .continuation = options_.continuation,
                         .seed = options_.seed,
                         .progress = options_.progress},
                        executor_);
  }

  absl::StatusOr<TargetMetrics> MakeMetrics(const PairStatistics& statistics) const {
    if (options_.metric == Metric::kFisher) {
      TargetMetrics metrics;
      BATON_ASSIGN_OR_RETURN(metrics.producer, Fisher(pair_.producer));
      BATON_ASSIGN_OR_RETURN(metrics.consumer, Fisher(pair_.consumer));
      return metrics;
    }
    const ModelConfig& c = pair_.producer.model->config();
    const std::size_t layers = statistics.layers.size();
    TargetMetrics metrics = {.producer = std::vector<Matrix>(layers),
                             .consumer = std::vector<Matrix>(layers)};
    ForEach(executor_, c.layers, [&](std::int64_t layer) {
      const auto l = static_cast<std::size_t>(layer);
      const int index = static_cast<int>(layer);
      if (options_.metric == Metric::kIdentity) {
        metrics.producer[l] = metrics.consumer[l] = Matrix::Identity(2 * c.kv_heads * c.head_dim);
        return;
      }
      const LayerStatistics& of = statistics.layers[l];
      metrics.producer[l] = HeuristicMetric(pair_.producer, index, of.producer_queries,
                                            statistics.Producer(l).target, options_.prefix);
      metrics.consumer[l] = HeuristicMetric(pair_.consumer, index, of.consumer_queries,
                                            statistics.Consumer(l).target, options_.prefix);
    });
    return metrics;
  }

  absl::StatusOr<Codec> ToCodec(const Candidate& candidate) const {
    const ModelConfig& c = pair_.producer.model->config();
    Codec codec;
    codec.identity = {.producer_weights = pair_.producer_weights,
                      .consumer_weights = pair_.consumer_weights,
                      .tokenizer = pair_.tokenizer,
                      .source = options_.source,
                      .layers = c.layers,
                      .hidden = c.hidden,
                      .kv_heads = c.kv_heads,
                      .head_dim = c.head_dim};
    codec.layers = candidate.layers;
    if (options_.storage == CodecStorage::kInt8) RoundToInt8(codec);
    BATON_RETURN_IF_ERROR(CheckCodec(codec));
    return codec;
  }

  absl::StatusOr<HeldOutScores> Judge() const {
    std::vector<PrefixWay> ways = {UncodedWay("uncoded", pair_.consumer, executor_)};
    for (std::size_t i = 0; i < codecs_.size(); ++i) {
      ways.push_back(CodedWay(candidates_[i].spec.name, codecs_[i], pair_.consumer, executor_));
    }
    for (std::size_t i = 0; i < codecs_.size(); ++i) {
      for (const std::int32_t seam : options_.seams) {
        ways.push_back(WithSeam(ways[i + 1], seam));
      }
    }
    return ScoreHeldOut(pair_.producer, pair_.consumer, split_.held_out, ways,
                        {.prefix = options_.prefix,
                         .continuation = options_.continuation,
                         .progress = options_.progress},
                        executor_);
  }

  CalibrationResult Choose(const HeldOutScores& scores) const {
    std::size_t best = 0;
    for (std::size_t i = 1; i < codecs_.size(); ++i) {
      if (scores.ways[i + 1].kl < scores.ways[best + 1].kl) best = i;
    }
    CalibrationResult result;
    result.codec = codecs_[best];
    result.chosen = candidates_[best].spec.name;
    result.scores = scores;
    result.bytes_per_token.push_back(RawBytesPerToken(pair_.producer.model->config()));
    for (const Codec& codec : codecs_) result.bytes_per_token.push_back(codec.bytes_per_token());
    for (const Codec& codec : codecs_) {
      result.bytes_per_token.insert(result.bytes_per_token.end(), options_.seams.size(),
                                    codec.bytes_per_token());
    }
    result.codec.report = CalibrationReport({.options = options_,
                                             .set = set_,
                                             .split = split_,
                                             .model = pair_.producer.model->config(),
                                             .codecs = codecs_,
                                             .candidates = candidates_,
                                             .scores = scores,
                                             .patch_base = patch_base_,
                                             .patch = patch_ ? &*patch_ : nullptr,
                                             .chosen = best});
    return result;
  }

  const CalibrationPair& pair_;
  const DocumentSet& set_;
  const CalibrationOptions& options_;
  Executor& executor_;
  DocumentSplit split_;
  std::vector<Candidate> candidates_;
  std::vector<Codec> codecs_;     // of the candidates
  std::size_t trained_from_ = 0;  // candidate whose codes the trained one has
  std::string patch_base_;        // candidate whose layers were patched
  std::optional<PatchSelection> patch_;
};

}  // namespace

absl::Span<const char* const> CheckpointNames() {
  static constexpr const char* kNames[] = {kTrainedName, kPatchedTrainedName, kPatchesName};
  return kNames;
}

absl::Status CheckPair(const ModelConfig& p, const ModelConfig& c) {
  struct Field {
    const char* name;
    std::int64_t producer, consumer;
  };
  for (const Field& f :
       {Field{"layers", p.layers, c.layers}, Field{"hidden", p.hidden, c.hidden},
        Field{"kv_heads", p.kv_heads, c.kv_heads}, Field{"head_dim", p.head_dim, c.head_dim}}) {
    if (f.producer != f.consumer) {
      return Bad(Cat(f.name, ": ", f.producer, " at the producer, ", f.consumer,
                     " at the consumer; a codec is for models of one architecture"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckTokens(const DocumentSet& set, std::int64_t vocab) {
  for (const Document& d : set.documents) {
    for (const std::int32_t id : d.tokens) {
      if (id < 0 || id >= vocab) {
        return Bad(
            Cat(set.files[d.file].path, ": token ", id, "; the smaller vocabulary has ", vocab));
      }
    }
  }
  return absl::OkStatus();
}

double RawBytesPerToken(const ModelConfig& config) {
  return static_cast<double>(2 * 2 * config.layers * config.kv_heads * config.head_dim);
}

absl::StatusOr<CalibrationResult> Calibrate(const CalibrationPair& pair, const DocumentSet& set,
                                            const CalibrationOptions& options, Executor& executor) {
  try {
    const SingleTorchThread single;
    return Calibration(pair, set, options, executor).Run();
  } catch (const std::exception& e) {
    // Torch's, from a decomposition or for want of memory.
    return absl::InternalError(Cat("calibration: ", e.what()));
  }
}

}  // namespace baton
