// `baton inspect`: what is in a model file or a Hugging Face folder, and whether an adapter fits
// it.
#include <filesystem>
#include <iostream>
#include <map>
#include <memory>
#include <string>

#include "CLI/CLI.hpp"
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

void PrintText(const nlohmann::json& j, const std::string& indent = "") {
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
                << (value.is_string() ? value.get<std::string>() : value.dump()) << "\n";
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

int Fail(const absl::Status& status) {
  std::cerr << "baton: " << status.message() << "\n";
  return 1;
}

int RunInspect(const InspectOptions& o) {
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
  CLI::App* cmd = app.add_subcommand("inspect", "show what a model file or folder holds");
  cmd->add_option("path", options->path, "a .gguf file or a Hugging Face folder")->required();
  cmd->add_option("--adapter", options->adapter, "a PEFT LoRA folder to check against the model");
  cmd->add_flag("--tensors", options->tensors, "list every tensor");
  cmd->add_flag("--digest", options->digest, "hash the weights (reads the whole file)");
  cmd->add_flag("--json", options->json, "print JSON");
  cmd->callback([options, &exit_code] { exit_code = RunInspect(*options); });
}

}  // namespace baton::tools
