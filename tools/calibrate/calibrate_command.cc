#include "tools/calibrate/calibrate_command.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "common/base/machine.h"
#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "common/model/model.h"
#include "common/scd/calibrate/calibration.h"
#include "common/weights/layer_run.h"
#include "kernels/executor.h"
#include "spdlog/fmt/fmt.h"
#include "tools/pair/pair.h"
#include "tools/pair/stages.h"

namespace baton::tools {
namespace {

// Of raw fp16 K/V.
const std::map<std::string, double> kProfiles = {{"quality", 1.0 / 8}, {"economy", 1.0 / 12}};

const std::map<std::string, Metric> kMetrics = {{"fisher", Metric::kFisher},
                                                {"heuristic", Metric::kHeuristic},
                                                {"identity", Metric::kIdentity}};

const std::map<std::string, PatchChoice> kPatchChoices = {{"greedy", PatchChoice::kGreedy},
                                                          {"single", PatchChoice::kSingle},
                                                          {"error", PatchChoice::kError}};

// The default one always makes candidates.
const std::map<std::string, Factorisation> kFactorisations = {
    {FactorisationName(Factorisation::kStacked), Factorisation::kStacked},
    {FactorisationName(Factorisation::kPca), Factorisation::kPca}};

const std::map<std::string, std::uint8_t> kComponentBits = {{"auto", 0}, {"int8", 8}, {"int4", 4}};

struct Options {
  std::string producer;
  std::vector<std::string> consumers;
  std::vector<std::string> adapters;
  std::vector<std::string> data;
  std::string chat_template;
  std::string out;
  std::string profile = "quality";
  std::string source = "h";
  std::string metric = "fisher";
  bool separate = false;
  SeparateRanks separate_ranks;
  std::string patch = "off";
  std::string patch_choice = "greedy";
  std::vector<std::string> runs;
  int threads = 0;  // 0: all processors
  CalibrationOptions calibration;
};

// Of a consumer's file or folder: its last word, without the extension of a file.
std::string NameOf(const std::string& path) {
  std::filesystem::path p = std::filesystem::absolute(path).lexically_normal();
  if (!p.has_filename()) p = p.parent_path();
  return p.extension() == ".gguf" ? p.stem().string() : p.filename().string();
}

// One for each adapter, or each model.
absl::StatusOr<std::vector<ConsumerFiles>> ConsumersOf(const std::vector<std::string>& models,
                                                       const std::vector<std::string>& adapters) {
  if (models.size() > 1 && !adapters.empty() && adapters.size() != models.size()) {
    return absl::InvalidArgumentError(
        Cat("--adapter: ", adapters.size(), " of them for ", models.size(),
            " of --consumer; allowed: one for each in the same order (\"none\" for one without), ",
            "or any number for one --consumer"));
  }
  std::vector<ConsumerFiles> consumers;
  std::map<std::string, std::string> paths;  // by name
  for (std::size_t i = 0; i < std::max(models.size(), adapters.size()); ++i) {
    ConsumerFiles files;
    files.model = models[models.size() == 1 ? 0 : i];
    if (!adapters.empty() && adapters[i] != "none") files.adapter = adapters[i];
    const std::string& named = files.adapter.empty() ? files.model : files.adapter;
    files.name = NameOf(named);
    const auto [it, fresh] = paths.emplace(files.name, named);
    if (!fresh) {
      return absl::InvalidArgumentError(Cat("consumers: ", it->second, " and ", named,
                                            " would both be named \"", files.name,
                                            "\"; give one a name of its own, by a link"));
    }
    consumers.push_back(std::move(files));
  }
  return consumers;
}

class Command {
 public:
  explicit Command(Options options)
      : options_(std::move(options)), executor_(MakeThreadPool(options_.threads)) {}

  absl::Status Run() {
    BATON_ASSIGN_OR_RETURN(const std::vector<ConsumerFiles> consumers,
                           ConsumersOf(options_.consumers, options_.adapters));
    shared_ = consumers.size() > 1;
    BATON_RETURN_IF_ERROR(CheckOut(consumers.size()));
    const auto progress = [this](std::string_view stage, std::int64_t done, std::int64_t total) {
      stages_(stage, done, total);
    };
    BATON_ASSIGN_OR_RETURN(const LoadedGroup loaded,
                           LoadGroup({options_.producer, consumers}, progress, *executor_));
    CalibrationOptions& o = options_.calibration;
    o.source = options_.source == "h" ? CodeSource::kHidden : CodeSource::kKv;
    o.metric = kMetrics.at(options_.metric);
    BATON_ASSIGN_OR_RETURN(o.patch, ReadPatch());
    for (const std::string& text : options_.runs) {
      BATON_ASSIGN_OR_RETURN(o.runs.emplace_back(), ReadRun(text));
    }
    if (options_.separate) o.separate = options_.separate_ranks;
    const double raw = RawBytesPerToken(loaded.group.producer.model->config());
    if (o.bytes_per_token == 0) o.bytes_per_token = raw * kProfiles.at(options_.profile);
    o.progress = progress;
    o.checkpoints = options_.out + (shared_ ? "/part." : ".part.");
    BATON_ASSIGN_OR_RETURN(
        const DocumentSet set,
        ReadDocuments(options_.data, *loaded.tokenizer, ChatOf(loaded, options_.chat_template),
                      DocumentTokens(o)));
    BATON_ASSIGN_OR_RETURN(const std::vector<CalibrationResult> results,
                           CalibrateShared(loaded.group, set, o, *executor_));
    for (std::size_t i = 0; i < results.size(); ++i) {
      BATON_RETURN_IF_ERROR(SaveCodec(results[i].codec, OutOf(consumers[i]), o.storage));
    }
    for (const std::string& file : CheckpointFiles(loaded.group, o)) {
      std::error_code ignored;
      std::filesystem::remove(file, ignored);
    }
    for (std::size_t i = 0; i < results.size(); ++i) {
      if (shared_) std::cout << (i == 0 ? "" : "\n") << consumers[i].name << "\n";
      Print(results[i], OutOf(consumers[i]), raw);
    }
    return absl::OkStatus();
  }

 private:
  // Before an hour of work is lost for a folder that is not there.
  absl::Status CheckOut(std::size_t consumers) const {
    if (shared_) {
      if (std::filesystem::is_directory(options_.out)) return absl::OkStatus();
      return absl::InvalidArgumentError(Cat("--out ", options_.out,
                                            ": not a folder, which the codecs of ", consumers,
                                            " consumers go to"));
    }
    const auto parent = std::filesystem::absolute(options_.out).parent_path();
    if (std::filesystem::is_directory(options_.out) || !std::filesystem::is_directory(parent)) {
      return absl::InvalidArgumentError(Cat("--out ", options_.out, ": not a file in a folder"));
    }
    return absl::OkStatus();
  }

  std::string OutOf(const ConsumerFiles& consumer) const {
    return shared_ ? Cat(options_.out, "/", consumer.name, ".safetensors") : options_.out;
  }

  // "off", so many layers at most, or those with these numbers.
  absl::StatusOr<PatchOptions> ReadPatch() const {
    PatchOptions patch;
    if (options_.patch == "off") return patch;
    patch.choice = kPatchChoices.at(options_.patch_choice);
    const bool list = options_.patch.find(',') != std::string::npos;
    for (const absl::string_view word : absl::StrSplit(options_.patch, ',', absl::SkipEmpty())) {
      std::uint32_t number = 0;
      if (!absl::SimpleAtoi(word, &number)) {
        return absl::InvalidArgumentError(Cat("--patch ", options_.patch,
                                              ": neither \"off\" nor a ",
                                              "number nor layers, as in \"3,17\" or \"3,\""));
      }
      patch.most = number;
      if (list) patch.layers.push_back(number);
    }
    if (list) patch.choice = PatchChoice::kList;
    return patch;
  }

  static absl::StatusOr<LayerRun> ReadRun(const std::string& text) {
    absl::StatusOr<LayerRun> run = ParseLayerRun(text);
    if (run.ok()) return run;
    return absl::InvalidArgumentError(Cat("--run: ", StdView(run.status().message())));
  }

  static void Print(const CalibrationResult& result, const std::string& out, double raw) {
    const HeldOutScores& s = result.scores;
    std::cout << fmt::format("{:<22}{:>10}{:>10}{:>9}{:>9}{:>9}\n", "", "B/token", "KL", "+-",
                             "NLL", "top-1");
    std::cout << fmt::format("{:<22}{:>10}{:>10.4f}{:>9}{:>9.4f}{:>9.3f}\n", "own", "", 0.0, "",
                             s.reference_nll, 1.0);
    for (std::size_t i = 0; i < s.ways.size(); ++i) {
      const WayScore& way = s.ways[i];
      std::cout << fmt::format("{:<22}{:>10.0f}{:>10.4f}{:>9.4f}{:>9.4f}{:>9.3f}\n", way.name,
                               result.bytes_per_token[i], way.kl, way.kl_error, way.nll, way.top1);
    }
    std::cout << fmt::format(
        "{} predictions of {} held-out documents. {}: \"{}\", {} bytes per token ({:.1f} % of raw "
        "fp16), codec {}\n",
        s.tokens, s.documents, out, result.chosen, result.codec.bytes_per_token(),
        100 * result.codec.bytes_per_token() / raw, result.codec.Digest());
  }

  Options options_;
  bool shared_ = false;  // there are several consumers
  std::unique_ptr<Executor> executor_;
  Stages stages_;
};

void AddOptions(CLI::App& app, Options& o) {
  CalibrationOptions& c = o.calibration;
  app.add_option("--producer", o.producer, "who makes codes: a .gguf file or Hugging Face folder")
      ->required();
  app.add_option("--consumer", o.consumers,
                 "who reads them: a file or folder; of several, one code for all of them")
      ->required();
  app.add_option(
      "--adapter", o.adapters,
      "the consumer's PEFT LoRA folder; several of one consumer share a code; of several "
      "consumers one for each, or none");
  app.add_option(
         "--data", o.data,
         "texts like the traffic: .txt, or .jsonl with \"text\", \"context\" or \"messages\"")
      ->required();
  app.add_option("--chat-template", o.chat_template,
                 "how messages are put: a template's name, or none; default: the consumer's own");
  app.add_option("--out", o.out,
                 "the codec to write, .safetensors; the folder for those of several consumers")
      ->required();
  auto* profile = app.add_option("--profile", o.profile, "1/8 or 1/12 of raw fp16 K/V")
                      ->capture_default_str()
                      ->check(CLI::IsMember({"quality", "economy"}));
  app.add_option("--bytes-per-token", c.bytes_per_token, "of codes, at most; instead of a profile")
      ->check(CLI::PositiveNumber)
      ->excludes(profile);
  app.add_option("--source", o.source, "what is coded: attention inputs or K/V")
      ->capture_default_str()
      ->check(CLI::IsMember({"h", "kv"}));
  app.add_option("--metric", o.metric, "what an error costs")
      ->capture_default_str()
      ->check(CLI::IsMember({"fisher", "heuristic", "identity"}));
  app.add_option("--ridge", c.ridges, "pulls of closed forms towards the producer's own K/V")
      ->capture_default_str()
      ->delimiter(',')
      ->check(CLI::PositiveNumber);
  app.add_option("--factorisation", c.factorisations,
                 "further candidates, for comparison: stacked, pca")
      ->delimiter(',')
      ->transform(CLI::CheckedTransformer(kFactorisations));
  auto* separate = app.add_flag("--separate", o.separate,
                                "a further candidate, for comparison: codes of K and V apart");
  app.add_option("--rank-keys", o.separate_ranks.keys, "components of its keys at most, a layer")
      ->needs(separate)
      ->check(CLI::Range(std::int64_t{1}, kMaxCodecRank));
  app.add_option("--rank-values", o.separate_ranks.values, "and of its values")
      ->needs(separate)
      ->check(CLI::Range(std::int64_t{1}, kMaxCodecRank));
  app.add_option("--bits", c.component_bits,
                 "of a component: what each is worth, or the same for all that fit")
      ->transform(CLI::CheckedTransformer(kComponentBits))
      ->default_str("auto");
  app.add_option("--max-tokens", c.max_tokens, "to learn from")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{64}, std::int64_t{1} << 40));
  app.add_option("--statistics-tokens", c.statistics_tokens,
                 "of these, about so many for the statistics; the others train decoders")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{64}, std::int64_t{1} << 40));
  app.add_option("--prefix", c.prefix, "tokens of a held-out document that are handed off, at most")
      ->capture_default_str()
      ->check(CLI::Range(32, 1 << 20));
  app.add_option("--held-out", c.held_out, "documents that judge")
      ->capture_default_str()
      ->check(CLI::Range(1, 100'000));
  app.add_option("--seams", c.seams,
                 "judge candidates also with so many last tokens of the prefix recomputed")
      ->capture_default_str()
      ->check(CLI::Range(1, 1 << 20));
  app.add_option("--epochs", c.epochs, "of the trained candidate; 0: none is trained")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000));
  app.add_option("--train-from", c.train_from,
                 "the candidate to train: the best one, or raw, whose codes serve every consumer "
                 "learned from the same texts")
      ->transform(CLI::CheckedTransformer(
          std::map<std::string, TrainFrom>{{"best", TrainFrom::kBest}, {"raw", TrainFrom::kRaw}}))
      ->default_str("best");
  app.add_option("--train-documents", c.train_documents, "to train with, at most")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{2}, std::int64_t{1} << 20));
  app.add_option("--train-rank", c.train_rank, "of the trained correction")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, kMaxCodecRank));
  app.add_option("--learning-rate", c.learning_rate)
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option(
         "--patch", o.patch,
         "layers of the best candidate to patch: so many at most, a list (\"3,17\"), or off")
      ->capture_default_str();
  app.add_option("--patch-choice", o.patch_choice, "how they are chosen, but for a list")
      ->capture_default_str()
      ->check(CLI::IsMember({"greedy", "single", "error"}));
  app.add_option("--patch-documents", c.patch_documents, "that choose them")
      ->capture_default_str()
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20));
  app.add_option("--patch-epochs", c.patch_epochs,
                 "of training what was patched, with an MLP; 0: it is not trained")
      ->capture_default_str()
      ->check(CLI::Range(0, 1000));
  app.add_option("--run", o.runs,
                 "layers that the consumer computes itself over a prefix (\"9-23\"; several: a "
                 "candidate each); the best candidate with such a run is what is written")
      ->delimiter(',');
  app.add_option("--storage", c.storage, "how matrices lie in the file")
      ->transform(CLI::CheckedTransformer(std::map<std::string, CodecStorage>{
          {"int8", CodecStorage::kInt8}, {"fp32", CodecStorage::kF32}}))
      ->default_str("int8");
  app.add_option("--threads", o.threads, "default: all processors")->check(CLI::Range(1, 1024));
  app.add_option("--seed", c.seed, "of the split and the samples")->capture_default_str();
}

}  // namespace

int RunCalibrate(int argc, const char* const* argv) {
  CLI::App app{"make the codec of a producer and a consumer", "baton calibrate"};
  Options options;
  AddOptions(app, options);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    return app.exit(e) == 0 ? 0 : 2;
  }
  if (options.threads == 0) options.threads = EffectiveCpuCount();
  if (absl::Status status = Command(std::move(options)).Run(); !status.ok()) {
    std::cerr << "baton: " << status.message() << "\n";
    return 1;
  }
  return 0;
}

}  // namespace baton::tools
