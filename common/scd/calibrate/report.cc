#include "common/scd/calibrate/report.h"

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <numeric>

#include "nlohmann/json.hpp"

namespace baton {
namespace {

using Json = nlohmann::ordered_json;

Json Options(const CalibrationOptions& o) {
  Json runs = Json::array();
  for (const LayerRun run : o.runs) runs.push_back(LayerRunText(run));
  return {{"source", CodeSourceName(o.source)},
          {"metric", MetricName(o.metric)},
          {"bytes_per_token", o.bytes_per_token},
          {"ridges", o.ridges},
          {"component_bits", int{o.component_bits}},
          {"max_tokens", o.max_tokens},
          {"statistics_tokens", o.statistics_tokens},
          {"prefix", o.prefix},
          {"continuation", o.continuation},
          {"held_out", o.held_out},
          {"seams", o.seams},
          {"sample_rows", o.sample_rows},
          {"epochs", o.epochs},
          {"train_from", o.train_from == TrainFrom::kBest ? "best" : "raw"},
          {"train_documents", o.train_documents},
          {"train_rank", o.train_rank},
          {"learning_rate", o.learning_rate},
          {"patch", PatchChoiceName(o.patch.choice)},
          {"patch_layers", o.patch.most},
          {"patch_documents", o.patch_documents},
          {"patch_epochs", o.patch_epochs},
          {"runs", runs},
          {"fisher_documents", o.fisher_documents},
          {"storage", o.storage == CodecStorage::kInt8 ? "int8" : "fp32"},
          {"seed", o.seed}};
}

Json Data(const ReportInput& in, std::int64_t source_width) {
  Json files = Json::array();
  for (const DocumentSet::File& f : in.set.files) {
    // A codec is given away; where its texts lay is nobody's business.
    files.push_back({{"path", std::filesystem::path(f.path).filename().string()},
                     {"documents", f.documents},
                     {"tokens", f.tokens},
                     {"too_short", f.too_short},
                     {"repeated", f.repeated}});
  }
  return {{"files", files},
          {"digest", in.set.Digest()},
          {"learned_documents", in.split.learned.size()},
          {"learned_tokens", in.split.learned_tokens},
          {"tokens_per_input",
           static_cast<double>(std::min(in.split.learned_tokens, in.options.statistics_tokens)) /
               static_cast<double>(source_width)},
          {"held_out_documents", in.scores.documents},
          {"held_out_predictions", in.scores.tokens}};
}

Json Score(const WayScore& s, double bytes) {
  return {{"name", s.name}, {"bytes_per_token", bytes},
          {"kl", s.kl},     {"kl_error", s.kl_error},
          {"nll", s.nll},   {"top1", s.top1}};
}

Json Layers(const Codec& codec, const Candidate& candidate) {
  Json layers = Json::array();
  for (std::size_t l = 0; l < codec.layers.size(); ++l) {
    const CodecLayer& layer = codec.layers[l];
    Json row = {{"kind", LayerKindName(layer.kind)},
                {"rank", layer.rank()},
                {"bits", std::accumulate(layer.bits.begin(), layer.bits.end(), 0)}};
    if (!candidate.relative_error.empty()) row["relative_error"] = candidate.relative_error[l];
    layers.push_back(std::move(row));
  }
  return layers;
}

Json Patch(const ReportInput& in) {
  const PatchSelection& p = *in.patch;
  Json out = {{"base", in.patch_base}, {"choice", PatchChoiceName(in.options.patch.choice)},
              {"base_kl", p.base_kl},  {"order", p.order},
              {"curve", p.curve},      {"layers", p.layers()}};
  if (!p.single_kl.empty()) out["single_kl"] = p.single_kl;
  return out;
}

// Whose codes these are besides, and what the other encoders would have done for all of them.
Json Shared(const ReportInput& in) {
  Json consumers = Json::array();
  for (std::size_t c = 0; c < in.group.consumers.size(); ++c) {
    const std::size_t chosen = in.choice.chosen[c];
    consumers.push_back({{"name", in.group.consumers[c].name},
                         {"weights", in.group.consumers[c].weights},
                         {"chosen", in.candidates[chosen].spec.name},
                         {"kl", in.kl[c].candidates[chosen]},
                         {"uncoded_kl", in.kl[c].uncoded}});
  }
  Json encoders = Json::array();
  for (const SharedChoice::Encoder& e : in.choice.encoders) {
    Json names = Json::array();
    for (const std::size_t i : e.candidates) names.push_back(in.candidates[i].spec.name);
    encoders.push_back({{"candidates", names}, {"relative_kl", e.relative_kl}});
  }
  return {{"consumer", in.group.consumers[in.consumer].name},
          {"consumers", consumers},
          {"encoders", encoders}};
}

}  // namespace

std::string CalibrationReport(const ReportInput& in) {
  Json candidates = Json::array();
  candidates.push_back(
      Score(in.scores.ways[0], RawBytesPerToken(in.group.producer.model->config())));
  for (std::size_t i = 0; i < in.candidates.size(); ++i) {
    const CandidateSpec& spec = in.candidates[i].spec;
    Json row = Score(in.scores.ways[i + 1], in.codecs[i].bytes_per_token());
    row["factorisation"] = FactorisationName(spec.regression.factorisation);
    row["target"] = spec.target == CodeTarget::kProducer ? "producer" : "consumer";
    row["ridge"] = spec.regression.ridge;
    if (spec.separate) {
      row["separate"] = {{"keys", spec.separate->keys}, {"values", spec.separate->values}};
    }
    if (!in.candidates[i].judged_kl.empty()) {
      row["trained_from"] = in.candidates[i].trained_from;
      row["judged_kl"] = in.candidates[i].judged_kl;
    }
    if (const LayerRun run = in.codecs[i].run(); !run.empty()) {
      row["run"] = {{"layers", LayerRunText(run)}, {"base", in.candidates[i].run_base}};
    }
    candidates.push_back(std::move(row));
  }
  Json seams = Json::array();
  for (std::size_t w = in.candidates.size() + 1; w < in.scores.ways.size(); ++w) {
    const std::size_t of = (w - in.candidates.size() - 1) / in.options.seams.size();
    seams.push_back(Score(in.scores.ways[w], in.codecs[of].bytes_per_token()));
  }
  Json report = {{"chosen", in.candidates[in.chosen()].spec.name},
                 {"reference_nll", in.scores.reference_nll},
                 {"candidates", candidates},
                 {"seams", seams},
                 {"options", Options(in.options)},
                 {"data", Data(in, in.codecs[in.chosen()].identity.source_width())},
                 {"layers", Layers(in.codecs[in.chosen()], in.candidates[in.chosen()])}};
  if (in.patch != nullptr) report["patch"] = Patch(in);
  if (in.group.shared()) report["shared"] = Shared(in);
  // Paths need not be UTF-8.
  return report.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace baton
