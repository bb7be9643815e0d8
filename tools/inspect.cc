// `baton inspect`: what is in a model file, a Hugging Face folder or a codec, and whether an
// adapter fits a model.
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "common/scd/codec.h"
#include "common/weights/lora.h"
#include "common/weights/model_source.h"
#include "nlohmann/json.hpp"
#include "spdlog/fmt/fmt.h"
#include "tools/commands.h"

namespace baton::tools {
namespace {

struct InspectOptions {
  std::string path;
  std::string adapter;
  bool tensors = false;
  bool json = false;
  bool digest = false;
};

nlohmann::json DescribeConfig(const ModelConfig& c) {
  nlohmann::json j;
  j["architecture"] = c.architecture;
  j["layers"] = c.layers;
  j["hidden"] = c.hidden;
  j["heads"] = c.heads;
  j["kv_heads"] = c.kv_heads;
  j["head_dim"] = c.head_dim;
  j["ffn"] = c.ffn;
  j["vocab"] = c.vocab;
  j["max_context"] = c.max_context;
  j["rope_theta"] = c.rope.theta;
  j["tied_embeddings"] = c.tie_embeddings;
  j["plan"] = Describe(c);
  if (!c.warnings.empty()) j["warnings"] = c.warnings;
  j["eos_token_ids"] = c.eos_ids;
  j["kv_bytes_per_token_fp16"] = 2 * 2 * c.layers * c.kv_heads * c.head_dim;
  return j;
}

nlohmann::json DescribeModel(const ModelSource& source, const InspectOptions& o) {
  nlohmann::json out;
  out["path"] = source.path();
  out["format"] = source.format() == ModelSource::Format::kGguf ? "gguf" : "hugging face folder";
  out["config"] = DescribeConfig(source.config());
  out["chat_template"] =
      source.chat_template() ? "present, from " + source.chat_template_origin() : "absent";
  std::int64_t parameters = 0;
  std::uint64_t bytes = 0;
  nlohmann::json tensors = nlohmann::json::array();
  for (const std::string& name : source.TensorNames()) {
    const auto tensor = source.GetTensor(name);
    if (!tensor.ok()) continue;
    const TensorView& view = *tensor->view;
    std::int64_t n = 1;
    for (const auto d : view.shape) n *= static_cast<std::int64_t>(d);
    parameters += n;
    bytes += view.nbytes;
    if (o.tensors) {
      tensors.push_back(
          {{"name", name}, {"dtype", std::string(DTypeName(view.dtype))}, {"shape", view.shape}});
    }
  }
  out["parameters"] = parameters;
  out["weight_bytes"] = bytes;
  if (o.tensors) out["tensors"] = std::move(tensors);
  if (o.digest) out["weights_digest"] = source.WeightsDigest();
  return out;
}

template <typename Json>
void PrintText(const Json& j, const std::string& indent = "") {
  for (const auto& [key, value] : j.items()) {
    if (value.is_object()) {
      std::cout << indent << key << ":\n";
      PrintText(value, indent + "  ");
    } else if (value.is_array() && !value.empty() && value.front().is_object()) {
      std::cout << indent << key << ":\n";
      for (const auto& item : value) {
        std::cout << indent << "  " << item.value("name", "") << " " << item.value("dtype", "")
                  << " " << item["shape"].dump() << "\n";
      }
    } else {
      std::cout << indent << key << ": "
                << (value.is_string() ? value.template get<std::string>() : value.dump()) << "\n";
    }
  }
}

nlohmann::json DescribeAdapter(const LoraAdapter& adapter) {
  nlohmann::json out;
  std::map<std::string, int> modules;  // layers that adapt it
  std::int64_t parameters = 0;
  for (const LoraLayer& layer : adapter.layers) {
    for (const auto& [name, module] : layer) {
      ++modules[name];
      parameters += module.rank * (module.in + module.out);
    }
  }
  out["digest"] = adapter.digest;
  out["max_rank"] = adapter.max_rank;
  out["layers_by_module"] = modules;
  out["parameters"] = parameters;
  return out;
}

nlohmann::ordered_json DescribeCodec(const Codec& codec, const std::string& path) {
  const CodecIdentity& id = codec.identity;
  const double raw = 2.0 * 2.0 * static_cast<double>(id.layers * id.kv_dim());
  nlohmann::ordered_json out = {{"path", path},
                                {"format", "codec"},
                                {"version", codec.version()},
                                {"digest", codec.Digest()},
                                {"encoder_digest", codec.EncoderDigest()},
                                {"producer_weights", id.producer_weights},
                                {"consumer_weights", id.consumer_weights},
                                {"tokenizer", id.tokenizer},
                                {"source", CodeSourceName(id.source)},
                                {"layers", id.layers},
                                {"hidden", id.hidden},
                                {"kv_heads", id.kv_heads},
                                {"head_dim", id.head_dim},
                                {"bytes_per_token", codec.bytes_per_token()},
                                {"part_of_raw_fp16", codec.bytes_per_token() / raw}};
  // The layers that the consumer computes itself.
  if (const LayerRun run = codec.run(); !run.empty()) out["run"] = LayerRunText(run);
  std::vector<std::int64_t> ranks, bits;
  std::vector<std::string> kinds;
  for (const CodecLayer& layer : codec.layers) {
    kinds.emplace_back(LayerKindName(layer.kind));
    if (!layer.mlp_in.empty()) kinds.back() += "+mlp";
    ranks.push_back(layer.rank());
    bits.push_back(std::accumulate(layer.bits.begin(), layer.bits.end(), std::int64_t{0}));
  }
  out["kind_of_layers"] = kinds;
  out["rank_of_layers"] = ranks;
  out["bits_of_layers"] = bits;
  // Carried by the file and never relied on: shown as far as it is what calibration writes.
  const auto report = nlohmann::ordered_json::parse(codec.report, nullptr, false);
  out["report"] = report.is_object() ? report : nlohmann::ordered_json::object();
  return out;
}

// One line for each candidate: the table that calibration printed.
void PrintCandidates(const nlohmann::ordered_json& report) {
  if (!report.contains("candidates") || !report["candidates"].is_array()) return;
  std::cout << "candidates:\n";
  for (const auto& row : report["candidates"]) {
    if (row.is_object()) std::cout << "  " << row.dump() << "\n";
  }
}

int Fail(const absl::Status& status) {
  std::cerr << "baton: " << status.message() << "\n";
  return 1;
}

int InspectCodec(const InspectOptions& o) {
  const auto codec = LoadCodec(o.path);
  if (!codec.ok()) return Fail(codec.status());
  nlohmann::ordered_json out = DescribeCodec(*codec, o.path);
  if (o.json) {
    std::cout << out.dump(2) << "\n";
    return 0;
  }
  const nlohmann::ordered_json report = out["report"];
  out.erase("report");
  PrintText(out);
  for (const char* key : {"chosen", "reference_nll", "options", "data"}) {
    if (report.contains(key)) std::cout << key << ": " << report[key].dump() << "\n";
  }
  PrintCandidates(report);
  return 0;
}

int RunInspect(const InspectOptions& o) {
  if (o.path.ends_with(".safetensors") && std::filesystem::is_regular_file(o.path)) {
    return InspectCodec(o);
  }
  if (std::filesystem::exists(o.path + "/adapter_config.json") &&
      !std::filesystem::exists(o.path + "/config.json")) {
    return Fail(absl::InvalidArgumentError(
        o.path + " is an adapter: name its base model and give the adapter as --adapter"));
  }
  auto source = ModelSource::Open(o.path);
  if (!source.ok()) return Fail(source.status());
  nlohmann::json out = DescribeModel(**source, o);
  if (!o.adapter.empty()) {
    const auto adapter = LoadLoraAdapter(o.adapter, o.adapter, (*source)->config());
    if (!adapter.ok()) return Fail(adapter.status());
    out["adapter"] = DescribeAdapter(*adapter);
  }
  if (o.json) {
    std::cout << out.dump(2) << "\n";
  } else {
    PrintText(out);
  }
  return 0;
}

}  // namespace

void AddInspectCommand(CLI::App& app, int& exit_code) {
  auto options = std::make_shared<InspectOptions>();
  CLI::App* cmd = app.add_subcommand("inspect", "show what a model or a codec holds");
  cmd->add_option("path", options->path,
                  "a .gguf file, a Hugging Face folder, or a codec (.safetensors)")
      ->required();
  cmd->add_option("--adapter", options->adapter, "a PEFT LoRA folder to check against the model");
  cmd->add_flag("--tensors", options->tensors, "list every tensor");
  cmd->add_flag("--digest", options->digest, "hash the weights (reads the whole file)");
  cmd->add_flag("--json", options->json, "print JSON");
  cmd->callback([options, &exit_code] { exit_code = RunInspect(*options); });
}

}  // namespace baton::tools
